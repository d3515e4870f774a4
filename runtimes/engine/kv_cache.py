"""Slot allocation and prefix reuse.

No prompt is computed twice: the longest common beginning with a new sequence is looked for in the
sequence's own slot, in other slots (running, or retained from one that has ended), and in a pool in
memory, which keeps what was pushed out of the slots.

A model with recurrent states or sliding windows cannot cut a slot back to where two texts part. It
takes checkpoints while it reads a prompt: where another one that waits parts from it, where it
parts from one that came before, at the end of the first message, before the answer, and at
intervals of a long prompt. A slot is brought back to the last one that the new text passes; with a
window, also to where none is, while the window's tokens before that are still there.

A runner whose slots have caches of their own decodes neighbouring slots in one pass. An unused slot
between them costs as much as a sequence that is run along, or another pass over the weights. So
before a step the sequence in the highest slot changes places with the lowest unused one, as often
as that pays by what moves and steps have taken. Where each adapter has passes of its own, sequences
of one come to lie next to each other in the same way.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runtimes.engine.metrics import averaged
from runtimes.engine.prefix_pool import (
    PooledPrefix,
    Prefix,
    PrefixPool,
    common_prefix,
    same_later,
)
from runtimes.engine.sequence import Sequence
from runtimes.errors import IngotError, RequestError
from runtimes.runner import Capabilities, KvSlots, SavedKv

logger = logging.getLogger(__name__)

# Fewer tokens are computed about as fast as they are copied. Every chat template begins alike.
LEAST_SHARED = 16
# A checkpoint ends a step early, which costs about as much as to compute so many tokens.
_LEAST_REREAD = 32
_WORTH_TELLING = 256  # tokens that are computed again for a change before them
_SHOWN = 12  # tokens, about as many words
_COMPARED = 4  # cached texts; to compare 30,000 tokens takes 10 ms
_LEAST_APART = 1024  # tokens between the checkpoints of a long prompt
_CHECKPOINT_SHARE = 0.01  # of the time that the tokens between two of them take
_ONE_PROMPTS_SHARE = 0.25  # of the budget, for the checkpoints at intervals of one prompt
# A shift keeps the first tokens, on which attention leans (StreamingLLM, arXiv:2309.17453), and
# drops half of the others, as llama.cpp's server does.
_SINK_TOKENS = 4
# A gap is taken to stay for this many steps: some would be closed at once by one that arrives.
_GAP_STEPS = 4
_MOST_MOVED_BYTES = 2**28  # of keys and values that are held twice while they move
_FIRST_BYTES_S = 1e9  # until a move has been timed; low, so that the first ones are small


class Match(NamedTuple):
    """The best place found: a slot or a pool entry that begins with ``length`` wanted tokens."""

    length: int
    slot: int | None = None
    entry: PooledPrefix | None = None


class KvCache:
    """Slots, and the prefixes that they and the pool hold. For the engine's thread only.

    Where slots have caches of their own, an ended sequence's tokens stay in its slot; a cache that
    all slots share is walked whole by every step, so they move to the pool at once. ``pool_bytes``
    bounds the pool, with its checkpoints; ``enabled`` False keeps nothing for later sequences. What
    is reused is a multiple of ``chunk`` tokens; nothing, if that is above 1 and slots can neither
    be cut nor brought back to the last bit. ``token_s`` is the time that a token of a prompt takes,
    0 until it is known.
    """

    def __init__(
        self,
        slots: KvSlots,
        capabilities: Capabilities,
        *,
        pool_bytes: int,
        enabled: bool = True,
        chunk: int = 1,
    ) -> None:
        self.capabilities, self.chunk = capabilities, chunk
        self.pool = PrefixPool(pool_bytes if enabled else 0, can_trim=capabilities.can_trim)
        self.prompt_tokens = self.found_tokens = 0  # of new sequences, and those found cached
        self._kv = slots
        self._sequences: list[Sequence | None] = [None] * capabilities.slots
        self._retained: dict[int, Prefix] = {}  # what free slots hold
        # Samples of one request share a prompt also where nothing else is kept.
        self._reuses = chunk == 1 or capabilities.can_trim or capabilities.exact_checkpoints
        self._enabled = enabled and self._reuses
        # Sequences in a shared cache run in any order. A window's tokens come to lie in another
        # order in the slot that they move to, and so are added up in another.
        self.compacts = not (
            capabilities.mixed_batch
            or capabilities.lone_rows
            or (chunk > 1 and not capabilities.can_trim)
        )
        self.checkpoints = self._enabled and not capabilities.can_trim and self.pool.budget > 0
        self.token_s = 0.0
        self._checkpoint_s = 0.0
        self._checkpoint_bytes = 0
        self.moves = 0
        self._move_s = capabilities.kv_bytes_per_token / _FIRST_BYTES_S  # of a token
        self._row_s = 0.0  # of a row in a decode step

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences with a slot, in ascending slot order."""
        return tuple(filter(None, self._sequences))

    @property
    def decoding(self) -> list[Sequence]:
        """Sequences that decode, in ascending slot order."""
        return [one for one in self.running if one.decoding]

    @property
    def busy(self) -> bool:
        """Whether any slot has a sequence."""
        return any(self._sequences)

    @property
    def free_slots(self) -> list[int]:
        """Slots without a sequence, in ascending order."""
        return [slot for slot, one in enumerate(self._sequences) if one is None]

    def held_tokens(self) -> int:
        """Tokens whose keys and values the slots hold. May be called from any thread."""
        retained = sum(len(prefix.tokens) for prefix in list(self._retained.values()))
        return retained + sum(one.position for one in self.running)

    def fits(self, sequence: Sequence, beside: Iterable[Sequence]) -> bool:
        """Whether it has room beside the others, whatever length all of them come to."""
        most = self.capabilities.kv_tokens
        return most is None or sum(map(self._reserved, (sequence, *beside))) <= most

    def _reserved(self, sequence: Sequence) -> int:
        longest = len(sequence.prompt) + sequence.request.params.max_tokens
        return min(longest, self.capabilities.context)

    def place(self, sequence: Sequence) -> None:
        """Give it a slot: the free one that holds the longest beginning of its tokens; else the
        lowest, an empty one before one with content as long as only few sequences run.
        """
        free, wanted = self.free_slots, _wanted(sequence)
        points, held = self._points(wanted), self._retained

        def usable(slot: int) -> int:
            return self._usable(wanted, held.get(slot), 0, points, self._kv.shortest(slot))

        slot = max(free, key=usable)  # the lowest of several
        if not usable(slot):
            low = [slot for slot in free if slot <= free[0] + 1]
            slot = next((slot for slot in low if slot not in held), free[0])
        self._sequences[slot], sequence.slot = sequence, slot

    def reuse_prefix(self, sequence: Sequence) -> bool:
        """Make its slot ready with the longest prefix at hand. False: it should wait for another
        one that is computing what both begin with.

        Samples of one request share their prompt also where prefixes are not kept.
        """
        wanted = _wanted(sequence)
        start = wanted.tokens[:LEAST_SHARED]
        peers = [
            other
            for other in self.running
            if other is not sequence
            and other.tokens(0, LEAST_SHARED) == start
            and other.request.adapter == wanted.adapter
            and (self._enabled or other.request.id == sequence.request.id)
            and not other.dropped
        ]
        live = _held_by(peers)
        match = self._find(wanted, live, prefer=sequence.slot)
        for other in peers:
            reading = not (other.needs_prefix or other.decoding)
            if reading and self._coming(wanted, other) - match.length >= LEAST_SHARED:
                return False
        told = logger.isEnabledFor(logging.INFO)
        known = self._known(live) if told or self.checkpoints else []
        if self.checkpoints:
            coming = [other.coming_tokens() for other in peers if other.needs_prefix]
            sequence.stops = self._stops(sequence, wanted, match.length, known, coming)
        sequence.computed = self._restore(sequence.slot, match, wanted)
        sequence.needs_prefix = False
        if not (sequence.requeued or sequence.index):
            sequence.reused = sequence.computed
            self.prompt_tokens += sequence.length
            self.found_tokens += sequence.computed
            if told:
                _log_parting(sequence, wanted, known)
        return True

    def release(self, sequence: Sequence) -> None:
        """Take it out of its slot; what it leaves there is kept, if it is worth it."""
        slot, prefix = sequence.slot, Prefix(sequence.request.adapter, sequence.cached_tokens())
        self._sequences[slot], sequence.slot = None, -1
        if not sequence.needs_prefix:
            self._leave(slot, prefix, sequence.position)

    def _leave(self, slot: int, prefix: Prefix, held: int) -> None:
        """Keep ``prefix`` of the ``held`` tokens of a slot, or what can be kept of it."""
        self._retained.pop(slot, None)
        worth = self._enabled and len(prefix.tokens) >= LEAST_SHARED
        point: PooledPrefix | None = None
        if worth and len(prefix.tokens) < held and not self.capabilities.can_trim:
            if points := self._points(prefix):
                point = points[max(points)]
                prefix = point.prefix
            worth = point is not None
        try:
            self._cut_back(slot, len(prefix.tokens) if worth else 0, point)
            if worth and self.capabilities.mixed_batch:
                self._offload(slot, prefix)
                self._kv.trim(slot, 0)
            elif worth:
                self._retained[slot] = prefix
        except IngotError as error:
            logger.warning("a slot could not be cut back: %s", error)

    def cut(self, sequence: Sequence) -> bool:
        """Forget what its slot holds beyond what counts as computed. False: all of it is lost, and
        its slot is another's.
        """
        try:
            self._kv.trim(sequence.slot, sequence.position)
        except IngotError as error:
            logger.warning("a slot could not be cut back: %s", error)
            return self._empty(sequence.slot) is None
        return True

    def make_room(self, sequence: Sequence) -> bool:
        """Shift its context if the next token does not fit; False when that is not done."""
        context = self.capabilities.context
        if sequence.position < context:
            return True
        keep = min(_SINK_TOKENS, context // 4)
        discard = max(1, (context - keep) // 2)
        try:
            self._kv.shift(sequence.slot, keep, discard)
        except IngotError as error:
            logger.warning("the context could not be shifted: %s", error)
            return False
        sequence.dropped += discard
        return True

    # Prefixes

    def _find(self, wanted: Prefix, live: Mapping[int, Prefix], prefer: int | None = None) -> Match:
        """The longest usable beginning of ``wanted``; ``live`` is what running sequences hold."""
        best = Match(0)  # of several as long the first: the slot ``prefer``, if it is one
        slots, points = {**live, **self._retained}, self._points(wanted)
        for slot, held in sorted(slots.items(), key=lambda item: item[0] != prefer):
            shortest = self._kv.shortest(slot) if slot == prefer else self._held(slot)
            if length := self._usable(wanted, held, best.length, points, shortest):
                best = Match(length, slot=slot)
        for entry in self.pool.like(wanted):
            held, size = entry.prefix, len(entry.prefix.tokens)
            if length := self._usable(wanted, held, best.length, points, size):
                best = Match(length, entry=entry)
        return best

    def _known(self, live: Mapping[int, Prefix]) -> list[Prefix]:
        """All that is held: by running sequences (``live``), in free slots and in the pool."""
        pooled = (entry.prefix for entry in reversed(self.pool.entries) if entry.whole)
        return [*live.values(), *self._retained.values(), *pooled]

    def _points(self, wanted: Prefix) -> Mapping[int, PooledPrefix]:
        return self.pool.checkpoints(wanted) if self.checkpoints else {}

    def _usable(
        self, wanted: Prefix, held: Prefix | None, least: int, points: Iterable[int], shortest: int
    ) -> int:
        """Tokens of ``held`` that can serve; 0 if not more than ``least``, or too few. ``points``
        are the checkpoints of ``wanted``; ``shortest`` is what can be had without one.
        """
        if held is None or held.adapter != wanted.adapter or not self._reuses:
            return 0
        least = max(least + 1, LEAST_SHARED)
        mine, theirs = wanted.tokens, held.tokens
        if theirs[least - 1 : least] != mine[least - 1 : least]:  # before the others are compared
            return 0
        length = common_prefix(mine, theirs)
        if self.capabilities.can_trim:
            length = self._cut(length)
        elif length < shortest:
            length = max((point for point in points if point <= length), default=0)
        return length if length >= least else 0

    def _cut(self, length: int) -> int:
        """How much can be reused of ``length`` tokens that two sequences begin with."""
        return length // self.chunk * self.chunk

    def _restore(self, slot: int, match: Match, wanted: Prefix) -> int:
        """Make ``slot`` hold what was found; what it held beyond that moves to the pool."""
        point = self._points(wanted).get(match.length)
        for entry in (match.entry, point):
            if entry is not None:
                self.pool.touch(entry)  # what comes in now pushes others out
        own = self._retained.pop(slot, None)
        held = len(own.tokens) if own else 0
        if own and held - (match.length if match.slot == slot else 0) >= LEAST_SHARED:
            self._offload(slot, own)
        try:
            if match.entry is not None:
                held = len(match.entry.prefix.tokens)
                self._kv.load(slot, match.entry.data, held)
            elif match.slot is not None and match.slot != slot:
                held = self._held(match.slot) if point else match.length
                self._kv.copy(match.slot, slot, held)
            if held > match.length:
                self._cut_back(slot, match.length, point)
        except IngotError as error:
            logger.warning("a cached prefix could not be used: %s", error)
            self._kv.trim(slot, 0)
            return 0
        return match.length

    def _cut_back(self, slot: int, length: int, point: PooledPrefix | None) -> None:
        """Keep the first ``length`` tokens of a slot; ``point`` is the checkpoint at their end, if
        there is one. Raises as the slots do."""
        if point is not None:
            self._kv.rewind(slot, point.data, length)
        else:
            self._kv.trim(slot, length)

    def _offload(self, slot: int, prefix: Prefix) -> None:
        """Copy what ``slot`` holds, ``prefix``, into the pool, if it fits."""
        if not self.pool.budget or self.pool.holds(prefix):
            return
        try:
            self.pool.put(prefix, self._kv.save(slot))
        except (IngotError, MemoryError) as error:
            logger.warning("a prefix could not be kept: %s", error)

    def clear(self) -> int:
        """Drop every prefix that no running sequence has; return the bytes the pool gave back."""
        for slot in list(self._retained):
            self._kv.trim(slot, 0)
        self._retained.clear()
        return self.pool.clear()

    def save_prefix(self, wanted: Prefix) -> tuple[list[int], SavedKv] | None:
        """Tokens, keys and values of the longest known beginning of ``wanted``; None if none is.

        Never of more: the rest may be another conversation. Raises RequestError when no slot is
        free to cut that off in.
        """
        match = self._find(wanted, _held_by(self.running))
        known = Prefix(wanted.adapter, wanted.tokens[: match.length])
        if not match.length:
            return None
        if match.entry is not None and match.length == len(match.entry.prefix.tokens):
            return known.tokens, match.entry.data
        if match.slot is not None and match.length == self._held(match.slot):
            return known.tokens, self._kv.save(match.slot)
        if not (free := self.free_slots):
            raise RequestError("every slot is in use: save again when a request has ended")
        if self._restore(free[0], match, wanted) == 0:
            return None
        try:
            return known.tokens, self._kv.save(free[0])
        finally:
            self._leave(free[0], known, match.length)

    # Checkpoints

    def _coming(self, wanted: Prefix, other: Sequence) -> int:
        """Tokens of ``wanted`` that will be at hand once ``other`` has read so far."""
        shared = self._cut(common_prefix(wanted.tokens, other.coming_tokens()))
        if self.capabilities.can_trim:
            return shared
        planned = [at for at in other.stops if other.computed < at <= shared]
        last = max(planned, default=0)
        if not self.checkpoints or shared <= other.computed or shared - last < _LEAST_REREAD:
            return last
        other.stops = sorted({*other.stops, shared})
        return shared

    def _stops(
        self,
        sequence: Sequence,
        wanted: Prefix,
        reused: int,
        known: Iterable[Prefix],
        coming: Iterable[list[int]],
    ) -> list[int]:
        """Places for checkpoints of a prompt of which ``reused`` tokens are at hand: ``known``
        is held somewhere, and ``coming`` are the tokens of sequences that have just got a slot.
        """
        points = {max((_shared(wanted, held) for held in known), default=0)}
        points |= {common_prefix(wanted.tokens, tokens) for tokens in coming}
        size, answer = len(sequence.prompt), 0
        if sequence.request.followed:
            apart, (first, answer) = self._apart(size), sequence.turn_ends()
            points |= {first, answer, *range(reused + apart, size, apart)}
        taken, stops = self._points(wanted), list[int]()
        for at in sorted(set(map(self._cut, points))):
            last = stops[-1] if stops else reused
            # A chat's next turn goes on from the answer, however short this one is.
            least = last + (_LEAST_REREAD if at != self._cut(answer) else 1)
            if max(least, LEAST_SHARED) <= at <= size and at not in taken:
                stops.append(at)
        if sequence.request.params.samples > 1 and self.chunk == 1:
            stops.append(size)  # no step ends early for that
        return stops

    def _apart(self, size: int) -> int:
        """Tokens between checkpoints at intervals of a prompt of ``size`` tokens: whole steps."""
        apart = float(_LEAST_APART)
        if self.token_s:
            apart = max(apart, self._checkpoint_s / self.token_s / _CHECKPOINT_SHARE)
        room = self.pool.budget * _ONE_PROMPTS_SHARE
        apart = max(apart, size * self._checkpoint_bytes / room)
        return math.ceil(apart / self.capabilities.batch) * self.capabilities.batch

    def take_checkpoint(self, sequence: Sequence) -> None:
        """Keep what brings a slot back to where the sequence's is now, if that was planned."""
        if not self.checkpoints or sequence.computed not in sequence.stops or sequence.dropped:
            return
        prefix = Prefix(sequence.request.adapter, sequence.tokens(0, sequence.computed))
        begin = time.perf_counter()
        try:
            data = self._kv.checkpoint(sequence.slot)
            self.pool.put(prefix, data, whole=self.capabilities.whole_checkpoints)
        except (IngotError, MemoryError) as error:
            logger.warning("a checkpoint could not be taken: %s", error)
            return
        self._checkpoint_s = averaged(self._checkpoint_s, time.perf_counter() - begin)
        self._checkpoint_bytes = len(data)

    # Decoding sequences next to each other

    def learn(self, rows: int, seconds: float) -> None:
        """Note how long a decode step of ``rows`` rows has taken."""
        self._row_s = averaged(self._row_s, seconds / rows)

    def compact(self, decoding: list[Sequence]) -> list[Sequence]:
        """Move sequences that decode; return those whose keys and values were lost, which have no
        slot now."""
        most_tokens = _MOST_MOVED_BYTES // max(self.capabilities.kv_bytes_per_token, 1)
        while self.compacts:
            if (gap := _gap(decoding) or self._stray(decoding)) is None:
                break
            sequence, target = gap
            source, other = sequence.slot, self._sequences[target]
            both = [sequence, *([other] if other is not None and other.decoding else [])]
            if any(one.dropped for one in both):  # nothing could bring a shifted one back
                break
            tokens = self._held(source) + self._held(target)
            left = min(one.request.params.max_tokens - len(one.output) for one in both)
            worth = tokens * self._move_s <= min(left, _GAP_STEPS) * self._row_s
            if not worth or tokens > most_tokens:
                break
            self.moves += 1
            begin = time.perf_counter()
            try:
                self._kv.swap(source, target)
            except (IngotError, MemoryError) as error:
                logger.warning("a sequence could not be moved: %s", error)
                return [lost for slot in (source, target) if (lost := self._empty(slot))]
            self._exchange(source, target)
            decoding = self.decoding
            self._move_s = averaged(self._move_s, (time.perf_counter() - begin) / max(tokens, 1))
        return []

    def _stray(self, decoding: list[Sequence]) -> tuple[Sequence, int] | None:
        """A decoding sequence that others of its adapter come before, and the first slot among
        those of another adapter where it would join them."""
        adapters = [one.state.request.adapter for one in decoding]
        if not self.capabilities.adapters_apart or len(set(adapters)) < 2:
            return None
        counts = Counter(adapters)  # in the order of their slots
        wanted = [adapter for adapter, count in counts.items() for _ in range(count)]
        for at, (one, adapter) in enumerate(zip(decoding, wanted, strict=True)):
            if one.request.adapter != adapter:
                stray = next(x for x in decoding[at:] if x.request.adapter == adapter)
                return stray, one.slot
        return None

    def _held(self, slot: int) -> int:
        """Tokens whose keys and values are in the slot."""
        one = self._sequences[slot]
        if one is not None and not one.needs_prefix:
            return one.position
        return len(self._retained[slot].tokens) if slot in self._retained else 0

    def _exchange(self, first: int, second: int) -> None:
        here, there = self._sequences[first], self._sequences[second]
        self._sequences[first], self._sequences[second] = there, here
        for slot, one in ((second, here), (first, there)):
            if one is not None:
                one.slot = slot
        left = {first: self._retained.pop(second, None), second: self._retained.pop(first, None)}
        self._retained.update({slot: prefix for slot, prefix in left.items() if prefix})

    def _empty(self, slot: int) -> Sequence | None:
        """Drop what the slot holds; return the sequence that it was of, which has no slot now."""
        self._retained.pop(slot, None)
        self._kv.trim(slot, 0)
        one = self._sequences[slot]
        if one is None or one.needs_prefix:
            return None
        self._sequences[slot], one.slot = None, -1
        return one


def _gap(decoding: list[Sequence]) -> tuple[Sequence, int] | None:
    """The decoding sequence in the highest slot, and the lowest slot below that has none."""
    lowest = next((i for i, one in enumerate(decoding) if one.slot != i), len(decoding))
    return (decoding[-1], lowest) if lowest < len(decoding) else None


def _wanted(sequence: Sequence) -> Prefix:
    """Length that may be reused: one token at least is left to compute, since its logits are
    wanted, and those of a prompt that is not yet scored."""
    usable = sequence.state.scores.usable if sequence.state.scores else None
    most = sequence.length - 1 if usable is None else usable
    return Prefix(sequence.request.adapter, sequence.tokens(0, most))


def _held_by(sequences: Iterable[Sequence]) -> dict[int, Prefix]:
    """Prefixes that other rows can use, by slot."""
    return {one.slot: Prefix(one.request.adapter, one.cached_tokens()) for one in sequences}


def _shared(wanted: Prefix, held: Prefix) -> int:
    same = wanted.adapter == held.adapter
    return common_prefix(wanted.tokens, held.tokens) if same else 0


def _log_parting(sequence: Sequence, wanted: Prefix, known: Iterable[Prefix]) -> None:
    """Log where the prompt parts from a cached one that goes on alike behind a change."""
    pairs = [(_shared(wanted, one), one.tokens) for one in known]
    shared = max((same for same, _ in pairs), default=0)
    least = shared + _WORTH_TELLING
    if len(wanted.tokens) < least:
        return
    others = [held for same, held in pairs if same == shared and len(held) >= least][:_COMPARED]
    found = [(same_later(wanted.tokens, held, shared), held) for held in others]
    again, held = max(found, key=lambda one: one[0], default=(0, []))
    if again < _WORTH_TELLING:
        return
    tokenizer = sequence.state.tokenizer

    def text(tokens: list[int]) -> str:
        return b"".join(map(tokenizer.token_bytes, tokens)).decode("utf-8", "replace")

    logger.info(
        "%s: at least %s tokens are computed again although they are as before: behind %r (token %s"
        " of %s) the prompt has %r, and had %r; text that changes belongs at the end of a prompt",
        sequence.request.id,
        f"{again:,}",
        text(wanted.tokens[max(shared - _SHOWN, 0) : shared]),
        f"{shared:,}",
        f"{len(sequence.prompt):,}",
        text(wanted.tokens[shared : shared + _SHOWN]),
        text(held[shared : shared + _SHOWN]),
    )
