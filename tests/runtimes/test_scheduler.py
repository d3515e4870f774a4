"""The scheduler's invariants over random histories of arrivals, cancellations and endings."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimes.request import Priority, Request, SamplingParams
from runtimes.scheduler import Row, Scheduler, Step


@dataclass
class History:
    """Drives a scheduler the way the engine does, and checks every step on the way."""

    scheduler: Scheduler
    slots: int
    batch: int
    mixed: bool
    live: list[Row] = field(default_factory=list)
    fed: dict[int, list[int]] = field(default_factory=dict)
    finished: list[Row] = field(default_factory=list)
    next_token: int = 1000

    def add(self, prompt: int, output: int, priority: Priority) -> None:
        request = Request(
            list(range(1, prompt + 1)), SamplingParams(max_tokens=output), priority=priority
        )
        row = self.scheduler.add(request)
        self.live.append(row)
        self.fed[id(row)] = []

    def cancel(self, index: int) -> None:
        if self.live:
            row = self.live.pop(index % len(self.live))
            self.scheduler.remove(row)

    def step(self, *, fails: bool = False) -> bool:
        self.scheduler.admit()
        step = self.scheduler.plan()
        if step is None:
            assert not self.live
            return False
        self.check(step)
        if fails:
            return True  # not committed: the very same step must come again
        tokens = []
        for _ in step.sampled:
            self.next_token += 1
            tokens.append(self.next_token)
        for row, planned in zip(step.rows, step.plan.rows, strict=True):
            self.fed[id(row)] += list(planned.tokens)
        self.scheduler.commit(step, tokens)
        for row in step.sampled:
            if len(row.output) >= row.request.params.max_tokens:
                self.scheduler.remove(row)
                self.live.remove(row)
                self.finished.append(row)
        return True

    def check(self, step: Step) -> None:
        rows = step.plan.rows
        slots = [row.slot for row in rows]
        assert slots == sorted(set(slots)), "ascending slots, none twice"
        assert all(0 <= slot < self.slots for slot in slots)
        assert 0 < sum(len(row.tokens) for row in rows) <= self.batch
        assert all(row.tokens for row in rows)
        for row, planned in zip(step.rows, rows, strict=True):
            assert planned.position == len(self.fed[id(row)]), "tokens go in without gaps"
            assert planned.slot == row.slot
            whole = row.request.prompt + row.output
            end = planned.position + len(planned.tokens)
            assert list(planned.tokens) == whole[planned.position : end]
            assert planned.wants_logits == (end == len(whole))
        if not self.mixed:
            prefills = [row for row in step.rows if row.prefilling]
            assert len(prefills) in (0, len(step.rows))
            assert len(prefills) <= 1, "one row of prefill at a time"
        else:
            decoding = [row for row in self.scheduler.running if not row.prefilling]
            assert all(row in step.rows for row in decoding), "every running row decodes"


requests = st.tuples(st.integers(1, 40), st.integers(1, 12), st.sampled_from(Priority))
events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), requests),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("step"), st.booleans()),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(events, st.integers(1, 6), st.integers(0, 20), st.booleans())
def test_every_row_is_served_whole_and_in_order(events, slots, extra, mixed):
    batch = slots + extra
    history = History(Scheduler(slots=slots, batch=batch, mixed_batch=mixed), slots, batch, mixed)
    for kind, value in events:
        if kind == "add":
            history.add(*value)
        elif kind == "cancel":
            history.cancel(value)
        else:
            history.step(fails=value)
    budget = 10_000
    while history.step():
        budget -= 1
        assert budget, "the scheduler must come to an end"
    assert history.scheduler.idle
    for row in history.finished:
        assert len(row.output) == row.request.params.max_tokens
        # The last sampled token never needs to go through the model.
        assert history.fed[id(row)] == row.request.prompt + row.output[:-1]


def test_waiting_rows_are_admitted_by_priority_then_arrival():
    scheduler = Scheduler(slots=1, batch=8, mixed_batch=True)
    order = [Priority.LOW, Priority.NORMAL, Priority.CRITICAL, Priority.NORMAL, Priority.HIGH]
    rows = [scheduler.add(Request([1], priority=priority)) for priority in order]
    admitted = []
    while not scheduler.idle:
        (row,) = scheduler.admit()
        admitted.append(rows.index(row))
        scheduler.remove(row)
    assert admitted == [2, 4, 1, 3, 0]


def test_a_freed_slot_is_taken_in_the_next_step_lowest_first():
    scheduler = Scheduler(slots=3, batch=8, mixed_batch=True)
    rows = [scheduler.add(Request([1, 2])) for _ in range(5)]
    scheduler.admit()
    scheduler.remove(rows[1])
    scheduler.remove(rows[0])
    assert [row.slot for row in scheduler.admit()] == [0, 1]
    assert [row.slot for row in scheduler.running] == [0, 1, 2]


def test_running_rows_wait_for_at_most_one_chunk_without_mixed_batches():
    scheduler = Scheduler(slots=2, batch=4, mixed_batch=False)
    scheduler.add(Request([1], SamplingParams(max_tokens=50)))
    scheduler.admit()
    first = scheduler.plan()
    assert first is not None
    scheduler.commit(first, [7])
    scheduler.add(Request(list(range(40)), SamplingParams(max_tokens=1)))
    scheduler.admit()
    kinds = []
    for _ in range(8):
        step = scheduler.plan()
        assert step is not None
        kinds.append("prefill" if step.rows[0].prefilling else "decode")
        scheduler.commit(step, [7] * len(step.sampled))
    assert "prefill, prefill" not in ", ".join(kinds)
