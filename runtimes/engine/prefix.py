"""Which tokens' keys and values are at hand, so that no prompt is computed twice.

Three places are searched for the longest common beginning with a new row: what the row's own slot
still holds, what other slots hold (running or left behind), and a pool in memory, which keeps what
was pushed out of the slots, the least recently used going first when its budget is full.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtimes.engine.runner import Capabilities, KvSlots
from runtimes.errors import IngotError, RequestError

logger = logging.getLogger(__name__)

# Fewer tokens are computed about as fast as they are copied. Every chat template begins alike.
LEAST_SHARED = 16
_MOST_ENTRIES = 128  # each is looked at for every new row


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning. Bisects over slices, which C compares."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(slots=True, eq=False)
class Entry:
    """Keys and values in the pool."""

    tokens: list[int]
    data: bytes


@dataclass(frozen=True, slots=True)
class Match:
    """The best place found: a slot or a pool entry that begins with ``length`` wanted tokens."""

    length: int
    slot: int | None = None
    entry: Entry | None = None


_NOTHING = Match(0)


class PrefixCache:
    """Knows what every slot holds, and owns the pool. For the engine's thread only.

    ``retain`` leaves a finished row's tokens in its slot; without it they move to the pool at once
    (a cache that all slots share is walked whole by every step). ``budget`` is in bytes. What is
    reused is a multiple of ``chunk`` tokens; nothing, if that is above 1 and slots cannot be cut.
    """

    def __init__(
        self,
        kv: KvSlots,
        capabilities: Capabilities,
        *,
        budget: int,
        retain: bool,
        enabled: bool = True,
        chunk: int = 1,
    ) -> None:
        self._kv = kv
        self._slots, self._can_trim = capabilities.slots, capabilities.can_trim
        self._budget, self._chunk = budget, chunk
        self._retain, self.enabled = retain, enabled and (chunk == 1 or self._can_trim)
        self._left: dict[int, list[int]] = {}  # slot -> tokens left behind in it
        self._pool: list[Entry] = []  # least recently used first
        self.pool_bytes = 0

    def left_tokens(self) -> int:
        """Tokens that free slots still hold."""
        return sum(map(len, self._left.values()))

    def left_in(self, slot: int) -> int:
        """Tokens that a free slot still holds."""
        return len(self._left.get(slot, ()))

    def swap(self, first: int, second: int) -> None:
        """Exchange what two slots hold, of rows or left behind."""
        self._kv.swap(first, second)
        left = {first: self._left.pop(second, None), second: self._left.pop(first, None)}
        self._left.update({slot: tokens for slot, tokens in left.items() if tokens is not None})

    def choose_slot(self, tokens: Sequence[int], free: Sequence[int]) -> int:
        """The free slot to run in: the one that holds the longest beginning of ``tokens``; else the
        lowest, an empty one before one with content as long as only few rows run.
        """
        wanted = list(tokens[:-1])
        shared = {slot: self._usable(wanted, self._left.get(slot, []), 0) for slot in free}
        best = max(shared.values())
        if best:
            return next(slot for slot in free if shared[slot] == best)
        low = [slot for slot in free if slot <= free[0] + 1]
        return next((slot for slot in low if slot not in self._left), free[0])

    def attach(self, slot: int, match: Match) -> int:
        """Make ``slot`` hold what ``find`` found; return its length.

        What the slot held beyond that moves to the pool.
        """
        if match.entry is not None:
            self._pool.remove(match.entry)
            self._pool.append(match.entry)  # used last: what comes in now pushes others out
        own = self._left.pop(slot, [])
        if len(own) - (match.length if match.slot == slot else 0) >= LEAST_SHARED:
            self.stash(slot, own)
        try:
            self._move(slot, match, holds=len(own))
        except IngotError as error:
            logger.warning("a cached prefix could not be used: %s", error)
            self._kv.trim(slot, 0)
            return 0
        return match.length

    def _move(self, slot: int, match: Match, holds: int) -> None:
        if match.entry is not None:
            self._kv.load(slot, match.entry.data)
            if match.length < len(match.entry.tokens):
                self._kv.trim(slot, match.length)
        elif match.slot is not None and match.slot != slot:
            self._kv.copy(match.slot, slot, match.length)
        elif holds > match.length:
            self._kv.trim(slot, match.length)

    def find(
        self, tokens: Sequence[int], live: Mapping[int, Sequence[int]], prefer: int | None = None
    ) -> Match:
        """The longest usable beginning of ``tokens``, the slot ``prefer`` before others as long.

        ``live`` is what the slots of running rows hold. At least one token is left to compute,
        since its logits are wanted.
        """
        most = len(tokens) - 1
        wanted = list(tokens[:most])
        best = _NOTHING
        slots = {**live, **self._left}
        for slot, held in sorted(slots.items(), key=lambda item: item[0] != prefer):
            length = self._usable(wanted, held, best.length)
            if length > best.length:
                best = Match(length, slot=slot)
        for entry in reversed(self._pool):
            length = self._usable(wanted, entry.tokens, best.length)
            if length > best.length:
                best = Match(length, entry=entry)
        return best

    def _usable(self, wanted: list[int], held: Sequence[int], least: int) -> int:
        """How many tokens of ``held`` can serve; 0 if not more than ``least``, or too few."""
        least = max(least + 1, LEAST_SHARED)
        if min(len(held), len(wanted)) < least or held[:least] != wanted[:least]:
            return 0
        length = self.cut(common_prefix(wanted, held))
        return length if self._can_trim or length == len(held) else 0

    def cut(self, length: int) -> int:
        """How much can be reused of ``length`` tokens that two rows begin with."""
        if self._chunk == 1:
            return length
        return length // self._chunk * self._chunk if self._can_trim else 0

    def release(self, slot: int, held: Sequence[int]) -> None:
        """A row has left ``slot``, which holds ``held``."""
        worth = self.enabled and len(held) >= LEAST_SHARED
        if worth and self._retain:
            self._left[slot] = list(held)
            self._kv.trim(slot, len(held))
            return
        if worth:
            self.stash(slot, held)
        self._left.pop(slot, None)
        self._kv.trim(slot, 0)

    def stash(self, slot: int, held: Sequence[int]) -> None:
        """Copy what ``slot`` holds into the pool, if it is worth it and fits."""
        if not self._budget or len(held) < LEAST_SHARED:
            return
        held = list(held)
        if any(common_prefix(held, entry.tokens) == len(held) for entry in self._pool):
            return
        try:
            self.put(held, self._kv.save(slot, len(held)))
        except (IngotError, MemoryError) as error:
            logger.warning("a prefix could not be kept: %s", error)

    def put(self, tokens: list[int], data: bytes) -> bool:
        """Take keys and values into the pool; False if they alone exceed its budget.

        Entries that hold only a beginning of the new one go, if tokens can be cut off its end.
        """
        if len(data) > self._budget:
            return False
        if self._can_trim:
            covered = [e for e in self._pool if common_prefix(e.tokens, tokens) == len(e.tokens)]
            for entry in covered:
                self._drop(entry)
        while self.pool_bytes + len(data) > self._budget or len(self._pool) >= _MOST_ENTRIES:
            self._drop(self._pool[0])
        self._pool.append(Entry(tokens, data))
        self.pool_bytes += len(data)
        return True

    def _drop(self, entry: Entry) -> None:
        self._pool.remove(entry)
        self.pool_bytes -= len(entry.data)

    def empty(self, slot: int) -> None:
        """Drop whatever ``slot`` holds; it is not to be trusted."""
        self._left.pop(slot, None)
        self._kv.trim(slot, 0)

    def clear(self) -> int:
        """Drop everything that no running row holds; return the bytes that the pool gave back."""
        for slot in list(self._left):
            self._kv.trim(slot, 0)
        self._left.clear()
        freed, self.pool_bytes = self.pool_bytes, 0
        self._pool.clear()
        return freed

    def source(
        self, tokens: Sequence[int], live: Mapping[int, Sequence[int]]
    ) -> tuple[list[int], bytes] | None:
        """Tokens, keys and values of the longest known beginning of ``tokens``; None if none is.

        Never of more: the rest of a pool entry may be another conversation. Raises RequestError
        when no slot is free to cut that off in.
        """
        match = self.find([*tokens, -1], live)
        known = list(tokens[: match.length])
        if match.slot is not None:
            return known, self._kv.save(match.slot, match.length)
        if match.entry is None or match.length == len(match.entry.tokens):
            return (known, match.entry.data) if match.entry else None
        slot = next((slot for slot in range(self._slots) if slot not in live), None)
        if slot is None:
            raise RequestError("every slot is in use: save again when a request has ended")
        if self.attach(slot, match) == 0:
            return None
        try:
            return known, self._kv.save(slot, match.length)
        finally:
            self.release(slot, known)
