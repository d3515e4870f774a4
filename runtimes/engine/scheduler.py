"""Which rows run in the next step. Pure Python: no runtime, no text, no clock of its own.

Continuous batching at the level of steps (Orca, OSDI 2022): a waiting row takes a free slot, its
prompt goes in by chunks, and it leaves the step in which it ends. Every row that can decode does so
before prompt tokens get what is left of the step's token budget. A runtime that cannot mix the two
gets prefill of one row and decode of all in turn; prefill keeps decoding rows waiting for
``max_stall_s`` at a time, going by how fast prefill has been.

A step is a transaction: ``plan`` reserves nothing, ``commit`` moves the rows on, and a step that
fails is simply not committed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtimes.engine.admission import WaitingQueue, aged_key, ready_rows
from runtimes.engine.row import Row
from runtimes.engine.runner import StepPlan, StepRow
from runtimes.request import Request
from runtimes.settings import SchedulerSettings

_LEAST_CHUNK = 32  # tokens; less would cost nearly as much as this many
_FIRST_CHUNK = 256  # tokens, before the rate is known
_RATE_MEMORY = 0.8  # of the last estimate of the prefill rate, by step

ChooseSlot = Callable[[Row, Sequence[int]], int]
Attach = Callable[[Row], bool]


@dataclass(frozen=True, slots=True)
class Step:
    """A planned step: what the runner executes, and the rows behind it in the same order.

    ``sampled`` are the rows whose logits come back, in the order of the logits.
    """

    plan: StepPlan
    rows: tuple[Row, ...]
    sampled: tuple[Row, ...]
    prefill: int  # tokens of rows that were not decoding
    decoded: bool  # whether any row was


def lowest(_row: Row, free: Sequence[int]) -> int:
    """Choose the lowest free slot, which keeps the running rows together."""
    return free[0]


def from_nothing(row: Row) -> bool:
    """Attach a row to an empty slot."""
    row.fresh = False
    return True


class Scheduler:
    """Rows over ``slots`` slots with at most ``batch`` tokens a step.

    ``kv_tokens`` bounds the tokens that all running rows may come to hold together. A ``chunk``
    above 1 is where prompts are cut (see ``Row``), instead of where the time for a step is up. With
    ``shortlists`` the runner is told how many of a row's logits are enough. ``choose_slot`` picks
    among the free slots. ``attach`` is called before a row's first step in a slot: it may find a
    part of the row's tokens cached (and moves ``row.cached`` on), clears ``row.fresh``, and returns
    False to let the row wait for another one that is computing what both begin with.
    """

    def __init__(
        self,
        *,
        slots: int,
        batch: int,
        mixed_batch: bool,
        context: int | None = None,
        kv_tokens: int | None = None,
        shortlists: bool = False,
        chunk: int = 1,
        settings: SchedulerSettings | None = None,
        choose_slot: ChooseSlot = lowest,
        attach: Attach = from_nothing,
    ) -> None:
        if slots < 1 or batch < slots:
            raise ValueError("a scheduler needs slots >= 1 and batch >= slots")
        self._slots: list[Row | None] = [None] * slots
        self._batch, self._mixed, self._shortlists = batch, mixed_batch, shortlists
        self._context, self._kv_tokens, self._chunk = context, kv_tokens, chunk
        self._settings = settings or SchedulerSettings()
        self._choose_slot, self._attach = choose_slot, attach
        self._waiting = WaitingQueue()
        self._arrivals = itertools.count()
        self._stalled = 0.0  # seconds of prefill since rows last decoded
        self._prefill_rate: float | None = None  # tokens a second

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

    def add(self, request: Request, now: float = 0.0) -> Row:
        """Queue a request that arrives ``now``."""
        key = aged_key(now, request.priority, self._settings.aging_s)
        row = Row(request, key, next(self._arrivals), chunk=self._chunk)
        self._waiting.push(row)
        return row

    def fork(self, row: Row, index: int, first: int) -> Row:
        """Queue another sample of a row's request, with the first token that it drew.

        It comes before whatever arrived after the request.
        """
        other = Row(row.request, row.key, row.order, index, output=[first], chunk=row.chunk)
        self._waiting.push(other)
        return other

    def remove(self, row: Row) -> None:
        """Take a row out, finished or not; its slot is free for the next step."""
        if row.slot >= 0 and self._slots[row.slot] is row:
            self._slots[row.slot] = None
        else:
            self._waiting.remove(row)

    def admit(self, now: float = 0.0) -> list[Row]:
        """Give waiting rows free slots; return the rows admitted."""
        free = [slot for slot, row in enumerate(self._slots) if row is None]
        head = self._waiting.head
        wait = now - (head.key - head.request.priority * self._settings.aging_s) if head else 0.0
        admitted = []
        for row in ready_rows(self._waiting, self.running, len(free), wait, self._settings):
            if not self._fits(row, self.running):
                break
            row.slot = self._choose_slot(row, free)
            free.remove(row.slot)
            self._waiting.remove(row)
            self._slots[row.slot] = row
            admitted.append(row)
        return admitted

    def preempt(self) -> Row | None:
        """The running row that must give its slot to the head of the queue; None if none must.

        The head must be of a higher priority and come first in the aged order: a row that has
        waited long enough is not sent back for newcomers. To be followed by ``requeue``.
        """
        head = self._waiting.head
        if head is None or not self._settings.preempt or self._settings.strategy != "continuous":
            return None
        if any(row is None for row in self._slots) and self._fits(head, self.running):
            return None
        victims = [
            row
            for row in self.running
            if row.request.priority > head.request.priority
            and row.key > head.key
            and not row.dropped
        ]
        if not victims or not self._fits(head, [r for r in self.running if r not in victims]):
            return None
        return max(victims, key=lambda row: (row.request.priority, row.rank()))

    def requeue(self, row: Row) -> None:
        """Put a running row back into the queue; its tokens stay, its slot is free."""
        self.remove(row)
        row.slot, row.cached, row.fresh, row.requeued = -1, 0, True, True
        self._waiting.push(row)

    def row_in(self, slot: int) -> Row | None:
        """The row that has the slot."""
        return self._slots[slot]

    def gap(self) -> tuple[int, int] | None:
        """The highest decoding row's slot and the lowest one below it that has none; None if the
        decoding rows have the lowest slots."""
        decoding = [slot for slot, row in enumerate(self._slots) if row and row.decoding]
        lowest = next((i for i, slot in enumerate(decoding) if slot != i), len(decoding))
        return (decoding[-1], lowest) if lowest < len(decoding) else None

    def swap(self, first: int, second: int) -> None:
        """Let two slots change places, with what runs in them."""
        slots = self._slots
        slots[first], slots[second] = slots[second], slots[first]
        for slot in (first, second):
            row = slots[slot]
            if row is not None:
                row.slot = slot

    def _fits(self, row: Row, beside: Sequence[Row]) -> bool:
        if self._kv_tokens is None:
            return True
        return sum(map(self._reserve, beside)) + self._reserve(row) <= self._kv_tokens

    def _reserve(self, row: Row) -> int:
        """The most tokens that the row may come to hold."""
        most = len(row.request.prompt) + row.request.params.max_tokens
        return most if self._context is None else min(most, self._context)

    def plan(self) -> Step | None:
        """The next step over the rows that have a slot; None when there are none."""
        rows = self.running
        if not rows:
            return None
        decoding = [row for row in rows if row.decoding]
        prefilling = sorted((row for row in rows if not row.decoding), key=Row.rank)
        shares = dict.fromkeys(decoding, 1)
        budget = self._prefill_budget(bool(decoding))
        if self._mixed:
            budget = min(budget, self._batch - len(decoding))
        for row in prefilling:
            if budget <= 0 or (row.fresh and not self._attach(row)):
                continue
            if row.pending == 1:
                shares[row] = 1  # everything else was cached: it decodes with the others
                budget -= self._mixed
                continue
            share = row.piece if row.chunk > 1 else min(row.pending, budget)
            if not self._mixed:
                return self._step({row: share})
            shares[row] = share
            budget -= share
        return self._step(shares) if shares else None

    def _prefill_budget(self, decoding: bool) -> int:
        """How many prompt tokens may go in now."""
        limit, rate = self._settings.max_stall_s, self._prefill_rate
        seconds = self._settings.longest_step_s
        if decoding and limit is not None:
            seconds = min(limit - self._stalled, seconds)
            if seconds <= 0 and self._stalled:
                return 0
            if rate is None:
                return min(self._batch, _LEAST_CHUNK)
        chunk = _FIRST_CHUNK if rate is None else int(seconds * rate)
        return min(self._batch, max(_LEAST_CHUNK, chunk))

    def _step(self, shares: dict[Row, int]) -> Step:
        rows = tuple(row for row in self.running if row in shares)
        planned = tuple(
            StepRow(
                slot=row.slot,
                position=row.position,
                tokens=row.tokens(row.cached, shares[row]),
                wants_logits=shares[row] == row.pending,
                enough=row.request.params.enough if self._shortlists else 0,
            )
            for row in rows
        )
        sampled = tuple(row for row, step in zip(rows, planned, strict=True) if step.wants_logits)
        decoding = [row for row in rows if row.output and row.pending == 1]
        prefill = sum(shares[row] for row in rows) - len(decoding)
        return Step(StepPlan(planned), rows, sampled, prefill, bool(decoding))

    def commit(self, step: Step, tokens: Sequence[int], seconds: float = 0.0) -> None:
        """Record that the step took ``seconds`` and sampled ``tokens``, one for each of
        ``step.sampled``.
        """
        if step.prefill >= _LEAST_CHUNK and seconds > 0:
            rate, old = step.prefill / seconds, self._prefill_rate
            self._prefill_rate = (
                rate if old is None else _RATE_MEMORY * old + (1 - _RATE_MEMORY) * rate
            )
        self._stalled = 0.0 if step.decoded else self._stalled + seconds
        for row, planned in zip(step.rows, step.plan.rows, strict=True):
            row.cached += len(planned.tokens)
        for row, token in zip(step.sampled, tokens, strict=True):
            row.output.append(token)
