"""Random histories of a scheduler over slots whose keys and values are the tokens themselves.

What is sampled is a hash of what the slot holds, so that a row that ran on anything but its own
tokens comes out with another text. Each cell also knows with which of its neighbours it went in, as
the last digits of real keys and values do: reproducible rows must find every one as it would be if
they ran alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from runtimes.engine.gaps import Gaps
from runtimes.engine.prefix import LEAST_SHARED, PrefixCache, common_prefix
from runtimes.engine.row import Row
from runtimes.engine.runner import Capabilities
from runtimes.engine.scheduler import Scheduler, Step
from runtimes.errors import ModelError
from runtimes.request import Priority, Request, SamplingParams
from runtimes.settings import SchedulerSettings

TOKEN_BYTES = 4
_BITS = 10  # of a token or a position; three make a cell


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


def cell(token: int, start: int, end: int) -> int:
    """A token that went in together with those from position ``start`` to below ``end``."""
    return token | start << _BITS | end << 2 * _BITS


def tokens_of(cells: list[int]) -> list[int]:
    return [value % 2**_BITS for value in cells]


def canonical(row: Row, count: int) -> list[int]:
    """The first cells of a row that is computed in the one way: its prompt cut at multiples of the
    chunk, then a token at a time."""
    prompt, chunk = len(row.request.prompt), row.chunk
    cells = []
    for at, token in enumerate(row.tokens(0, count)):
        start = at // chunk * chunk if at < prompt else at
        cells.append(cell(token, start, min(start + chunk, prompt) if at < prompt else at + 1))
    return cells


class TokenSlots:
    """``KvSlots`` over lists of cells."""

    def __init__(self, slots: int, can_trim: bool, breaks: int = 0) -> None:
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.can_trim = can_trim
        self.swaps, self.breaks = 0, breaks

    def copy(self, source: int, target: int, length: int) -> None:
        assert source != target
        assert length == len(self.held[source]) or (
            self.can_trim and length < len(self.held[source])
        )
        self.held[target] = self.held[source][:length]

    def trim(self, slot: int, length: int) -> None:
        assert self.can_trim or length in (0, len(self.held[slot]))
        del self.held[slot][length:]

    def save(self, slot: int, length: int) -> bytes:
        assert length == len(self.held[slot]) or self.can_trim
        return b"".join(t.to_bytes(TOKEN_BYTES, "little") for t in self.held[slot][:length])

    def load(self, slot: int, data: bytes) -> None:
        pieces = range(0, len(data), TOKEN_BYTES)
        self.held[slot] = [int.from_bytes(data[i : i + TOKEN_BYTES], "little") for i in pieces]

    def swap(self, first: int, second: int) -> None:
        self.swaps += 1
        if self.breaks and self.swaps % self.breaks == 0:
            # Lost, or both as they were: nobody is to rely on either.
            if self.swaps % 2:
                raise MemoryError
            self.held[first], self.held[second] = [], []
            raise ModelError("this one is lost")
        self.held[first], self.held[second] = self.held[second], self.held[first]

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


class History:
    """Drives scheduler and prefix cache the way the engine does, and checks every step."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.now = 0.0
        self.kv = TokenSlots(shape.slots, shape.can_trim, shape.breaks)
        capabilities = Capabilities(
            runtime="tokens",
            slots=shape.slots,
            context=1000,
            batch=shape.batch,
            vocab_size=1000,
            mixed_batch=shape.mixed,
            can_trim=shape.can_trim,
        )
        self.prefix = PrefixCache(
            self.kv,
            capabilities,
            budget=shape.pool_tokens * TOKEN_BYTES,
            retain=not shape.mixed,
            enabled=shape.settings.prefix_cache,
            chunk=shape.chunk,
        )
        self.scheduler = Scheduler(
            slots=shape.slots,
            batch=shape.batch,
            mixed_batch=shape.mixed,
            kv_tokens=shape.kv_tokens,
            chunk=shape.chunk,
            settings=shape.settings,
            choose_slot=lambda row, free: self.prefix.choose_slot(row.tokens(0, row.length), free),
            attach=self.attach,
        )
        self.gaps = Gaps(self.scheduler, self.prefix, bytes_per_token=0)
        self.live: list[Row] = []
        self.finished: list[Row] = []
        self.preempted = self.reused = 0

    def add(self, prompt: list[int], output: int, priority: Priority, samples: int = 1) -> Row:
        params = SamplingParams(max_tokens=output, n=samples)
        row = self.scheduler.add(Request(prompt, params, priority=priority), self.now)
        self.live.append(row)
        return row

    def attach(self, row: Row) -> bool:
        tokens = row.tokens(0, row.length)
        peers = [other for other in self.scheduler.running if other is not row]
        match = self.prefix.find(tokens, {p.slot: p.held() for p in peers}, prefer=row.slot)
        for other in peers:
            if not (other.fresh or other.decoding):
                coming = self.prefix.cut(common_prefix(tokens[:-1], other.coming()))
                if coming - match.length >= LEAST_SHARED:
                    return False
        row.cached = self.prefix.attach(row.slot, match)
        row.fresh = False
        self.reused += row.cached
        assert tokens_of(self.kv.held[row.slot]) == tokens[: row.cached]
        assert row.cached < len(tokens)
        return True

    def leave(self, row: Row) -> None:
        slot, held, ready = row.slot, row.held(), not row.fresh
        self.scheduler.remove(row)
        if slot >= 0 and ready:
            self.prefix.release(slot, held)

    def cancel(self, index: int) -> None:
        if self.live:
            self.leave(self.live.pop(index % len(self.live)))

    def step(self, *, fails: bool = False) -> bool:
        """Run a step; False when nothing ran."""
        self.now += 0.01
        while (victim := self.scheduler.preempt()) is not None:
            slot, held = victim.slot, victim.held()
            self.scheduler.requeue(victim)
            self.prefix.release(slot, held)
            self.preempted += 1
        self.scheduler.admit(self.now)
        step = self.scheduler.plan()
        if step and step.decoded and not self.shape.mixed:
            self.gaps.stepped(step, seconds=60.0)  # any move pays
            if self.gaps.close():
                step = self.scheduler.plan()
            if step and step.decoded and not self.shape.breaks:
                slots = [row.slot for row in step.rows]
                assert slots == list(range(len(slots))), "no gap between decoding rows"
        if step is None:
            return False
        self.check(step)
        if fails:
            return True  # not committed: its rows come again
        for planned in step.plan.rows:
            end = planned.position + len(planned.tokens)
            cells = [cell(token, planned.position, end) for token in planned.tokens]
            self.kv.held[planned.slot] += cells
        held = [tokens_of(self.kv.held[row.slot]) for row in step.sampled]
        tokens = [
            next_token(tokens) if row.output else first_token(tokens, row.index)
            for row, tokens in zip(step.sampled, held, strict=True)
        ]
        self.scheduler.commit(step, tokens, seconds=0.01)
        for row in step.sampled:
            if len(row.output) == 1 and not row.index:
                for index in range(1, row.request.params.n):
                    prompt = row.request.prompt
                    self.live.append(self.scheduler.fork(row, index, first_token(prompt, index)))
        for row in [r for r in self.live if len(r.output) >= r.request.params.max_tokens]:
            self.leave(row)
            self.live.remove(row)
            self.finished.append(row)
        return True

    def check(self, step: Step) -> None:
        shape, rows = self.shape, step.plan.rows
        slots = [row.slot for row in rows]
        assert slots == sorted(set(slots)), "ascending slots, none twice"
        assert all(0 <= slot < shape.slots for slot in slots)
        assert 0 < sum(len(row.tokens) for row in rows) <= shape.batch
        assert all(row.tokens for row in rows)
        for row, planned in zip(step.rows, rows, strict=True):
            whole = row.request.prompt + row.output
            end = planned.position + len(planned.tokens)
            held = self.kv.held[row.slot]
            assert tokens_of(held) == whole[: planned.position], "no gap, nothing foreign"
            if shape.chunk > 1:
                coming = [cell(token, planned.position, end) for token in planned.tokens]
                assert held + coming == canonical(row, end), "as if it ran alone"
            assert list(planned.tokens) == whole[planned.position : end]
            assert planned.wants_logits == (end == len(whole))
        decoding = [row for row in self.scheduler.running if row.decoding]
        if shape.mixed:
            assert all(row in step.rows for row in decoding), "every running row decodes"
        elif any(len(row.tokens) > 1 for row in rows):
            assert len(rows) == 1, "one row of prefill at a time"
        if shape.kv_tokens is not None:
            reserved = sum(
                len(row.request.prompt) + row.request.params.max_tokens
                for row in self.scheduler.running
            )
            assert reserved <= shape.kv_tokens

    def run_out(self) -> None:
        budget = 20_000
        while not self.scheduler.idle:
            self.step()
            budget -= 1
            assert budget, "the scheduler must come to an end"
