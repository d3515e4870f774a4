"""Random histories of a scheduler over slots whose keys and values are the tokens themselves.

What is sampled is a hash of what the slot holds, so that a row that ran on anything but its own
tokens comes out with another text. Each cell also knows with which of its neighbours it went in, as
the last digits of real keys and values do: reproducible rows must find every one as it would be if
they ran alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from itertools import groupby
from types import SimpleNamespace

from runtimes.engine.draft import Draft
from runtimes.engine.kv_cache import KvCache
from runtimes.engine.scheduler import Scheduler, Step
from runtimes.engine.sequence import RequestState, Sequence
from runtimes.errors import ModelError
from runtimes.request import Priority, Request, SamplingParams
from runtimes.runner import Capabilities
from runtimes.settings import SchedulerSettings

TOKEN_BYTES = 4
_BITS = 10  # of a token or a position; three make a cell, behind the number of an adapter


def next_token(held: list[int]) -> int:
    return zlib.crc32(bytes(token % 256 for token in held)) % 50


def expected_output(request: Request, index: int = 0) -> list[int]:
    tokens = list(request.prompt)
    output = [first_token(tokens, index)]
    while len(output) < request.params.max_tokens:
        output.append(next_token(tokens + output))
    return output


def first_token(prompt: list[int], index: int) -> int:
    """Further samples of a request differ in the token that they draw first."""
    return (next_token(prompt) + 7 * index) % 50


def bytes_of(token: int) -> bytes:
    """Every tenth token is a control token."""
    return b"x" if token % 10 else b""


ADAPTERS = (None, "a", "b", "c")


def cell(token: int, start: int, end: int, adapter: str | None) -> int:
    """A token that went in together with those from position ``start`` to below ``end``."""
    place = ADAPTERS.index(adapter)
    return token | start << _BITS | end << 2 * _BITS | place << 3 * _BITS


def tokens_of(cells: list[int]) -> list[int]:
    return [value % 2**_BITS for value in cells]


def canonical(row: Sequence, count: int) -> list[int]:
    """The first cells of a row that is computed in the one way: its prompt cut at multiples of the
    chunk, then a token at a time."""
    prompt, chunk = len(row.prompt), row.chunk
    cells = []
    for at, token in enumerate(row.tokens(0, count)):
        start = at // chunk * chunk if at < prompt else at
        end = min(start + chunk, prompt) if at < prompt else at + 1
        cells.append(cell(token, start, end, row.request.adapter))
    return cells


class TokenSlots:
    """``KvSlots`` over lists of cells. ``spare``: of a window, how many of a slot's last tokens it
    can lose again, or any as long as there are no more."""

    def __init__(
        self,
        slots: int,
        can_trim: bool,
        breaks: int = 0,
        *,
        whole: bool = False,
        spare: int | None = None,
    ) -> None:
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.spare, self.lost = spare, [0] * slots
        self.trims = 0
        self.can_trim, self.whole, self.exact = can_trim, whole, False
        self.swaps, self.breaks = 0, breaks
        self.rewinds = 0

    def copy(self, source: int, target: int, length: int) -> None:
        assert source != target
        assert length == len(self.held[source]) or (
            self.can_trim and length < len(self.held[source])
        )
        self.held[target] = self.held[source][:length]
        self.lost[target] = length

    def shortest(self, slot: int) -> int:
        """With a window: what lies further back than its spare cells has been written over."""
        held = len(self.held[slot])
        if self.can_trim or self.spare is None:
            return 0 if self.can_trim else held
        self.lost[slot] = max(self.lost[slot], held - self.spare)
        return min(self.lost[slot], held)

    def trim(self, slot: int, length: int) -> None:
        shortest = self.shortest(slot)
        assert length in (0, len(self.held[slot])) or length >= shortest
        self.trims += not self.can_trim and 0 < length < len(self.held[slot])
        del self.held[slot][length:]
        if length == 0:
            self.lost[slot] = 0

    def checkpoint(self, slot: int) -> bytes:
        """A recurrent state: a hash of what was read; all there is, where there is no attention."""
        if self.whole:
            return self.save(slot)
        read = [(value >> 3 * _BITS, value % 2**_BITS) for value in self.held[slot]]
        read = self.held[slot] if self.exact else read
        return zlib.crc32(repr(read).encode()).to_bytes(4, "little")

    def rewind(self, slot: int, data: bytes, length: int) -> None:
        assert 0 < length < len(self.held[slot])
        del self.held[slot][length:]
        self.lost[slot] = length
        assert self.checkpoint(slot) == data, "the state of these tokens"
        self.rewinds += 1

    def save(self, slot: int) -> bytes:
        return b"".join(t.to_bytes(TOKEN_BYTES, "little") for t in self.held[slot])

    def load(self, slot: int, data: bytes, length: int) -> None:
        assert len(data) == length * TOKEN_BYTES
        pieces = range(0, len(data), TOKEN_BYTES)
        self.held[slot] = [int.from_bytes(data[i : i + TOKEN_BYTES], "little") for i in pieces]
        self.lost[slot] = length

    def swap(self, first: int, second: int) -> None:
        self.swaps += 1
        if self.breaks and self.swaps % self.breaks == 0:
            # Lost, or both as they were: nobody is to rely on either.
            if self.swaps % 2:
                raise MemoryError
            self.held[first], self.held[second] = [], []
            raise ModelError("this one is lost")
        self.held[first], self.held[second] = self.held[second], self.held[first]
        self.lost[first], self.lost[second] = len(self.held[first]), len(self.held[second])

    def shift(self, slot: int, keep: int, discard: int) -> None:
        raise AssertionError("no history asks for this")


@dataclass
class Shape:
    slots: int
    batch: int
    mixed: bool
    can_trim: bool = True
    pool_tokens: int = 0
    kv_tokens: int | None = None
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    breaks: int = 0  # every so many moves of a row into a gap fail; 0: none does
    chunk: int = 1
    token_bytes: int = 0
    guesses: int = 0  # how many at a time are proposed for a row, right or wrong
    adapters_apart: bool = False
    equal_prefills: bool = False
    forced: int = 0  # how many tokens at a time are put behind a sampled one
    whole: bool = False  # a checkpoint is all that a slot holds
    exact: bool = True  # a slot that was brought back computes to the last bit what it did
    spare: int | None = None  # tokens that a window's slot can lose again


def make_cache(kv: TokenSlots, shape: Shape) -> KvCache:
    capabilities = Capabilities(
        runtime="tokens",
        slots=shape.slots,
        context=1000,
        batch=shape.batch,
        vocab_size=1000,
        mixed_batch=shape.mixed,
        can_trim=shape.can_trim,
        whole_checkpoints=shape.whole,
        exact_checkpoints=shape.exact,
        most_logits=shape.slots + 4,
        kv_tokens=shape.kv_tokens,
        kv_bytes_per_token=shape.token_bytes,
        adapters_apart=shape.adapters_apart,
        equal_prefills=shape.equal_prefills,
    )
    return KvCache(
        kv,
        capabilities,
        pool_bytes=shape.pool_tokens * TOKEN_BYTES,
        enabled=shape.settings.prefix_cache,
        chunk=shape.chunk,
    )


def make_sequence(request: Request, now: float = 0.0) -> Sequence:
    """The first sample of a request that arrives ``now``."""
    nobody = SimpleNamespace(put=lambda _: None, finish=lambda _: None)
    tokenizer = SimpleNamespace(eos_ids=frozenset(), token_bytes=bytes_of)
    state = RequestState(request, nobody, now, tokenizer)
    state.sequences.append(Sequence(state))
    return state.sequences[0]


def make_scheduler(
    slots: int, batch: int, mixed: bool, settings: SchedulerSettings | None = None
) -> Scheduler:
    shape = Shape(slots, batch, mixed, settings=settings or SchedulerSettings())
    return Scheduler(make_cache(TokenSlots(slots, can_trim=True), shape), shape.settings)


class Guesses:
    """``Proposer`` whose guesses are right for a while."""

    def __init__(self, most: int) -> None:
        self.most, self.right, self.wrong = most, 0, 0
        self.drafted: frozenset[Sequence] = frozenset()
        self.drafting_s = 0.0

    def begin(self) -> None:
        pass

    def propose(self, decoding: list[Sequence], most: int) -> dict[Sequence, list[int]]:
        found: dict[Sequence, list[int]] = {}
        for row in decoding:
            tokens, guesses = row.prompt + row.output, list[int]()
            count = min(self.most, most, row.request.params.max_tokens - len(row.output) - 1)
            for _ in range(count):
                guesses.append(next_token(tokens + guesses))
            if guesses:
                wrong = next_token(tokens[::-1]) % (len(guesses) + 1)
                guesses[wrong:] = [token + 1 for token in guesses[wrong:]]
                found[row], most = guesses, most - len(guesses)
        return found

    def learn(
        self, rows: int, more: int, seconds: float, accepted: list[tuple[Sequence, int]]
    ) -> None:
        self.right += sum(right for _, right in accepted)
        self.wrong += more - sum(right for _, right in accepted)

    def forget(self, sequence: Sequence) -> None:
        pass


def held_by(draft: Draft) -> dict[Sequence, list[int]]:
    """The tokens in the draft's slot of each row that has one."""
    return {one: draft._slots[at].held for one, at in draft._of.items()}


class History:
    """Drives the scheduler the way the engine does, and checks every step."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.now = 0.0
        self.kv = TokenSlots(
            shape.slots, shape.can_trim, shape.breaks, whole=shape.whole, spare=shape.spare
        )
        self.kv.exact = shape.chunk > 1
        self.cache = make_cache(self.kv, shape)
        self.scheduler = Scheduler(self.cache, shape.settings)
        self.guesses = Guesses(shape.guesses)
        self.scheduler.proposer = self.guesses if self.scheduler.proposer else None
        self.live: list[Sequence] = []
        self.finished: list[Sequence] = []
        self.expired: list[Sequence] = []
        self.reused = 0
        self.prefills_together = 0

    def add(
        self,
        prompt: list[int],
        output: int,
        priority: Priority = Priority.NORMAL,
        samples: int = 1,
        adapter: str | None = None,
        **fields,
    ) -> Sequence:
        params = SamplingParams(max_tokens=output, n=samples)
        request = Request(prompt, params, priority=priority, adapter=adapter, **fields)
        row = make_sequence(request, self.now)
        self.scheduler.add(row)
        self.live.append(row)
        return row

    def cancel(self, index: int) -> None:
        if self.live:
            self.scheduler.remove(self.live.pop(index % len(self.live)))

    def schedule(self) -> Step:
        """The next step; whatever got a slot ready holds its own tokens."""
        self.now += 0.01
        pending = [row for row in self.live if row.needs_prefix]
        step = self.scheduler.schedule(self.now)
        for row in step.expired:
            self.live.remove(row)
            self.expired.append(row)
        self.reused += sum(row.computed for row in pending if not row.needs_prefix)
        for row in self.cache.running:
            if not row.needs_prefix:
                held = self.kv.held[row.slot]
                assert tokens_of(held) == row.tokens(0, row.computed)
                mine = ADAPTERS.index(row.request.adapter)
                assert {value >> 3 * _BITS for value in held} <= {mine}, "keys of its own adapter"
                assert row.computed < row.length
        return step

    def step(self, *, fails: bool = False) -> bool:
        """Run a step; False when nothing ran."""
        self.cache.learn(1, 60.0)  # any move pays
        step, shape = self.schedule(), self.shape
        if not step.sequences:
            return False
        if step.decoded and self.cache.compacts and not (shape.breaks or shape.token_bytes):
            slots = [row.slot for row in step.sequences]
            assert slots == list(range(len(slots))), "no gap between decoding rows"
            groups = [name for name, _ in groupby(row.request.adapter for row in step.sequences)]
            together = len(groups) == len(set(groups))
            assert together or not shape.adapters_apart, "rows of one adapter side by side"
        self.check(step)
        if fails:
            return True  # not committed: its rows come again
        for planned in step.rows:
            end = planned.position + len(planned.tokens)
            cells = [
                cell(token, planned.position, end, planned.adapter) for token in planned.tokens
            ]
            self.kv.held[planned.slot] += cells
        drawn = [self.draw(step, row) for row in step.sampled]
        begun = [row for row in step.sampled if not row.output]
        self.scheduler.commit(step, drawn, seconds=0.01)
        for row in begun:
            if not row.index:
                for index in range(1, row.request.params.n):
                    other = Sequence(row.state, index, output=[first_token(row.prompt, index)])
                    self.scheduler.add(other)
                    self.live.append(other)
        for row in [r for r in self.live if len(r.output) >= r.request.params.max_tokens]:
            self.scheduler.remove(row)
            self.live.remove(row)
            self.finished.append(row)
        return True

    def draw(self, step: Step, row: Sequence) -> list[int]:
        """The tokens behind a row, each by what its slot holds at its place."""
        held, guesses = tokens_of(self.kv.held[row.slot]), step.proposed.get(row, [])
        known = held[: len(held) - len(guesses)]
        tokens = [next_token(known) if row.output else first_token(known, row.index)]
        for place, guess in enumerate(guesses):
            if tokens[-1] != guess:
                break
            tokens.append(next_token(held[: len(known) + place + 1]))
        row.forced = 0
        left = row.request.params.max_tokens - len(row.output) - len(tokens)
        if self.scheduler.takes_forced(row):
            row.forced = max(min(self.shape.forced, left), 0)
        for _ in range(row.forced):
            tokens.append(next_token(known + tokens))
        return tokens

    def check(self, step: Step) -> None:
        shape, rows = self.shape, step.rows
        slots = [row.slot for row in rows]
        assert slots == sorted(set(slots)), "ascending slots, none twice"
        assert all(0 <= slot < shape.slots for slot in slots)
        assert 0 < sum(len(row.tokens) for row in rows) <= shape.batch
        assert all(row.tokens for row in rows)
        for row, planned in zip(step.sequences, rows, strict=True):
            whole = row.prompt + row.output + step.proposed.get(row, [])
            end = planned.position + len(planned.tokens)
            held = self.kv.held[row.slot]
            assert tokens_of(held) == whole[: planned.position], "no gap, nothing foreign"
            if shape.chunk > 1:
                coming = [
                    cell(token, planned.position, end, planned.adapter) for token in planned.tokens
                ]
                assert held + coming == canonical(row, end), "as if it ran alone"
            assert list(planned.tokens) == whole[planned.position : end]
            guessed = len(step.proposed.get(row, []))
            assert planned.logits == (1 + guessed if end == len(whole) else 0)
            assert not guessed or (shape.can_trim and shape.settings.speculation)
        decoding = [row for row in self.cache.running if row.decoding]
        if shape.mixed:
            assert all(row in step.sequences for row in decoding), "every running row decodes"
        elif any(len(row.tokens) > 1 for row in rows):
            alike = len({len(row.tokens) for row in rows}) == 1 and slots[-1] - slots[0] < len(rows)
            assert len(rows) == 1 or (shape.equal_prefills and alike), "one row, or as many tokens"
            self.prefills_together += len(rows) > 1
        if shape.kv_tokens is not None:
            reserved = sum(
                len(row.prompt) + row.request.params.max_tokens for row in self.cache.running
            )
            assert reserved <= shape.kv_tokens

    def run_out(self) -> None:
        budget = 20_000
        while not self.scheduler.idle:
            self.step()
            budget -= 1
            assert budget, "the scheduler must come to an end"
