"""Prefixes kept in memory: keys and values that no slot holds any more, and checkpoints."""

from __future__ import annotations

import collections.abc as abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # NumPy takes long to import, and an app that starts may only compare tokens
    from runtimes.runner import SavedKv

_MOST_ENTRIES = 128  # each is looked at for every new sequence
_RUN = 16  # tokens that are not the same by chance; the least that are kept


class Prefix(NamedTuple):
    """Key of cached keys and values: an adapter and tokens."""

    adapter: str | None
    tokens: list[int]

    def begins(self, other: Prefix) -> bool:
        """Whether ``other`` begins with all of it."""
        mine, theirs = self.tokens, other.tokens
        same = theirs[len(mine) - 1 : len(mine)] == mine[-1:]  # what differs where both begin alike
        return same and self.adapter == other.adapter and theirs[: len(mine)] == mine

    def start(self) -> tuple[str | int | None, ...]:
        """Key that is equal where one can serve another."""
        return (self.adapter, *self.tokens[:_RUN])


def common_prefix(a: abc.Sequence[int], b: abc.Sequence[int]) -> int:
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


def same_later(a: abc.Sequence[int], b: abc.Sequence[int], start: int) -> int:
    """Tokens of ``a`` from ``start`` on that ``b`` has behind there, too, wherever: in runs."""
    runs = {tuple(b[at : at + _RUN]) for at in range(start, len(b) - _RUN + 1, _RUN)}
    same, at = 0, start
    while at + _RUN <= len(a):
        found = tuple(a[at : at + _RUN]) in runs
        same += _RUN * found
        at += _RUN if found else 1
    return same


@dataclass(slots=True, eq=False)
class PooledPrefix:
    """Keys and values in the pool; a checkpoint, unless ``whole``, is only what a slot with the
    tokens of ``prefix`` needs to be brought back to their end.
    """

    prefix: Prefix
    data: SavedKv
    whole: bool = True
    start: tuple[str | int | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.prefix.start()


class PrefixPool:
    """Entries of ``budget`` bytes at most; the least recently used go first."""

    def __init__(self, budget: int, *, can_trim: bool) -> None:
        self.budget, self._can_trim = budget, can_trim
        self.entries: list[PooledPrefix] = []  # least recently used first
        self._alike: dict[tuple[str | int | None, ...], list[PooledPrefix]] = {}  # by their starts
        self.nbytes = 0

    def like(self, wanted: Prefix, *, whole: bool = True) -> list[PooledPrefix]:
        """Entries that start as ``wanted`` does, the most recently used first."""
        alike = self._alike.get(wanted.start(), ())
        return [one for one in reversed(alike) if one.whole == whole]

    def holds(self, prefix: Prefix) -> bool:
        """Whether an entry begins with all of ``prefix``."""
        return any(prefix.begins(entry.prefix) for entry in self.like(prefix))

    def checkpoints(self, wanted: Prefix) -> dict[int, PooledPrefix]:
        """Checkpoints that ``wanted`` passes, by their numbers of tokens."""
        return {
            len(entry.prefix.tokens): entry
            for entry in reversed(self.like(wanted, whole=False))
            if entry.prefix.begins(wanted)
        }

    def put(self, prefix: Prefix, data: SavedKv, *, whole: bool = True) -> bool:
        """Take keys and values in; False if they alone exceed the budget.

        An entry of the same prefix goes; so do those that hold only a beginning of the new one, if
        tokens can be cut off its end.
        """
        if len(data) > self.budget:
            return False
        for entry in self.like(prefix, whole=whole):
            if entry.prefix == prefix or (self._can_trim and entry.prefix.begins(prefix)):
                self._drop(entry)
        while self.nbytes + len(data) > self.budget or len(self.entries) >= _MOST_ENTRIES:
            self._drop(self.entries[0])
        self._add(PooledPrefix(prefix, data, whole))
        return True

    def touch(self, entry: PooledPrefix) -> None:
        """Note that it was used."""
        self._drop(entry)
        self._add(entry)

    def clear(self) -> int:
        """Drop everything; return the bytes that this gave back."""
        freed, self.nbytes = self.nbytes, 0
        self.entries.clear()
        self._alike.clear()
        return freed

    def _add(self, entry: PooledPrefix) -> None:
        self.entries.append(entry)
        self._alike.setdefault(entry.start, []).append(entry)
        self.nbytes += len(entry.data)

    def _drop(self, entry: PooledPrefix) -> None:
        self.entries.remove(entry)
        alike = self._alike[entry.start]
        alike.remove(entry)
        if not alike:
            del self._alike[entry.start]
        self.nbytes -= len(entry.data)
