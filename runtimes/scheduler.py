"""Which rows run in the next step. Pure Python: no runtime, no text, no clock of its own.

Continuous batching at the level of steps (Orca, OSDI 2022): a waiting row takes the lowest free
slot, its prompt goes in by chunks, and it leaves the step in which it ends. Every row that can
decode does so before prompt tokens get what is left of the step's token budget. A runtime that
cannot mix the two gets prefill of one row and decode of all in turn, so that a running row never
waits for more than one chunk.

A step is a transaction: ``plan`` reserves nothing, ``commit`` moves the rows on, and a step that
fails is simply not committed.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

from runtimes.request import Request
from runtimes.runner import StepPlan, StepRow


@dataclass(slots=True, eq=False)
class Row:
    """A request on its way. ``cached`` counts the tokens whose keys and values the slot holds."""

    request: Request
    slot: int = -1
    cached: int = 0
    output: list[int] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Tokens that must go through the model before the next one can be sampled."""
        return len(self.request.prompt) + len(self.output) - self.cached

    @property
    def prefilling(self) -> bool:
        """True until the first token is sampled."""
        return not self.output

    def tokens(self, count: int) -> list[int]:
        """The next ``count`` tokens to feed."""
        prompt = self.request.prompt
        if self.cached >= len(prompt):
            start = self.cached - len(prompt)
            return self.output[start : start + count]
        return (prompt[self.cached : self.cached + count] + self.output)[:count]


@dataclass(frozen=True, slots=True)
class Step:
    """A planned step: what the runner executes, and the rows behind it in the same order.

    ``sampled`` are the rows whose logits come back, in the order of the logits.
    """

    plan: StepPlan
    rows: tuple[Row, ...]
    sampled: tuple[Row, ...]


class Scheduler:
    """Rows over ``slots`` slots with at most ``batch`` tokens a step."""

    def __init__(self, *, slots: int, batch: int, mixed_batch: bool) -> None:
        if slots < 1 or batch < slots:
            raise ValueError("a scheduler needs slots >= 1 and batch >= slots")
        self._slots: list[Row | None] = [None] * slots
        self._batch = batch
        self._mixed = mixed_batch
        self._waiting: list[tuple[int, int, Row]] = []
        self._arrivals = itertools.count()
        self._decode_next = False

    @property
    def waiting(self) -> int:
        """Rows without a slot."""
        return len(self._waiting)

    @property
    def running(self) -> tuple[Row, ...]:
        """Rows with a slot, in ascending slot order."""
        return tuple(row for row in self._slots if row is not None)

    @property
    def idle(self) -> bool:
        """True when there is nothing to do."""
        return not self._waiting and not any(self._slots)

    def add(self, request: Request) -> Row:
        """Queue a request behind those of its priority."""
        row = Row(request)
        heapq.heappush(self._waiting, (request.priority, next(self._arrivals), row))
        return row

    def remove(self, row: Row) -> None:
        """Take a row out, finished or not; its slot is free for the next step."""
        if row.slot >= 0 and self._slots[row.slot] is row:
            self._slots[row.slot] = None
            return
        self._waiting = [entry for entry in self._waiting if entry[2] is not row]
        heapq.heapify(self._waiting)

    def admit(self) -> list[Row]:
        """Give waiting rows the free slots, lowest slot first; return the rows admitted."""
        admitted = []
        for slot, holder in enumerate(self._slots):
            if not self._waiting:
                break
            if holder is None:
                row = heapq.heappop(self._waiting)[2]
                row.slot = slot
                self._slots[slot] = row
                admitted.append(row)
        return admitted

    def plan(self) -> Step | None:
        """The next step over the rows that have a slot; None when there are none."""
        rows = self.running
        if not rows:
            return None
        decoding = [row for row in rows if not row.prefilling]
        prefilling = [row for row in rows if row.prefilling]
        if self._mixed:
            return self._step(decoding, prefilling, self._batch - len(decoding))
        if prefilling and not (decoding and self._decode_next):
            # Earliest arrival first would need the clock; the least left to do gets a first token
            # soonest, and its slot order breaks ties.
            first = min(prefilling, key=lambda row: row.pending)
            self._decode_next = True
            return self._step([], [first], self._batch)
        self._decode_next = False
        return self._step(decoding, [], 0)

    def _step(self, decoding: list[Row], prefilling: list[Row], budget: int) -> Step:
        shares = {id(row): 1 for row in decoding}
        for row in prefilling:
            share = min(row.pending, budget)
            if share > 0:
                shares[id(row)] = share
                budget -= share
        rows = tuple(row for row in self.running if id(row) in shares)
        planned = tuple(
            StepRow(
                slot=row.slot,
                position=row.cached,
                tokens=row.tokens(shares[id(row)]),
                wants_logits=shares[id(row)] == row.pending,
            )
            for row in rows
        )
        sampled = tuple(row for row, step in zip(rows, planned, strict=True) if step.wants_logits)
        return Step(StepPlan(planned), rows, sampled)

    def commit(self, step: Step, tokens: list[int]) -> None:
        """Record that the step ran and sampled ``tokens``, one for each of ``step.sampled``."""
        for row, planned in zip(step.rows, step.plan.rows, strict=True):
            row.cached += len(planned.tokens)
        for row, token in zip(step.sampled, tokens, strict=True):
            row.output.append(token)
