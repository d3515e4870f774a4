"""The scheduler's invariants over random histories of arrivals, cancellations and endings."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimes.engine.policy import in_company, preemptible
from runtimes.engine.scheduler import Scheduler
from runtimes.engine.sequence import Sequence
from runtimes.request import Priority, Request, SamplingParams
from runtimes.settings import STRATEGIES, SchedulerSettings
from tests.runtimes.engine.histories import (
    ADAPTERS,
    History,
    Shape,
    expected_output,
    make_scheduler,
    make_sequence,
)

# Prompts share beginnings, as chats do: a common part and an own one.
prompts = st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 30)).map(
    lambda p: [100 + p[0]] * p[1] + list(range(p[2]))
)
adapters = st.sampled_from(ADAPTERS)
requests = st.tuples(
    prompts, st.integers(1, 12), st.sampled_from(Priority), st.integers(1, 3), adapters
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), requests),
        st.tuples(st.just("add"), requests),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("step"), st.booleans()),
    ),
    max_size=60,
)
shapes = st.builds(
    lambda slots, extra, mixed, pool, budget, scheduling, breaks, chunk, more: Shape(
        slots,
        slots + extra + chunk,
        mixed and chunk == 1,
        True,
        pool,
        budget,
        scheduling,
        breaks,
        chunk,
        guesses=more[0],
        forced=more[1],
        adapters_apart=more[2],
        equal_prefills=more[3] and not mixed,
    ),
    st.integers(1, 6),
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from([0, 50, 400]),
    st.sampled_from([None, 110, 250]),  # the largest request needs 102
    st.builds(
        SchedulerSettings,
        strategy=st.sampled_from(STRATEGIES),
        max_stall_s=st.sampled_from([None, 0.0, 0.02]),
        aging_s=st.sampled_from([0.0, 0.1]),
        prefix_cache=st.booleans(),
        speculation=st.booleans(),
    ),
    st.sampled_from([0, 0, 3]),
    st.sampled_from([1, 1, 8, 20]),
    st.tuples(st.integers(0, 6), st.integers(0, 4), st.booleans(), st.booleans()),
)


KINDS = {
    "attention": {},
    "window": {"can_trim": False, "exact": False, "spare": 12},
    "hybrid": {"can_trim": False},
    "recurrent": {"can_trim": False, "whole": True},
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=int(os.environ.get("INGOT_TEST_HISTORIES", "80")), deadline=None)
@given(events, shapes)
def test_every_row_is_served_whole_whatever_happens_around_it(kind, events, shape):
    """Any strategy, companions, preemption, failed steps, cancellations, prefix hits, checkpoints,
    and rows moved into gaps, successfully or not. Reproducible rows are computed as if they ran
    alone."""
    history = History(replace(shape, **KINDS[kind]))
    for kind, value in events:
        if kind == "add":
            history.add(*value)
        elif kind == "cancel":
            history.cancel(value)
        else:
            history.step(fails=value)
    history.run_out()
    assert not history.live
    assert history.cache.pool.nbytes <= shape.pool_tokens * 4
    for row in history.finished:
        assert row.output == expected_output(row.request, row.index)


@pytest.mark.parametrize(("slots", "mixed"), [(1, False), (3, True)])
def test_histories_do_guess_right_and_wrong(slots, mixed):
    """The property above would hold for a scheduler that never proposes."""
    settings = SchedulerSettings(speculation=True)
    history = History(Shape(slots, 64, mixed, settings=settings, guesses=4, forced=2))
    rows = [history.add([100 + i, 3, 4], 40) for i in range(slots)]
    steps = 0
    while not history.scheduler.idle:
        history.step()
        steps += 1
    assert history.guesses.right
    assert history.guesses.wrong
    assert steps < 30  # 40 tokens each
    assert [row.output for row in rows] == [expected_output(row.request) for row in rows]
    for row in rows:
        assert row.guessed["accepted_tokens"] <= row.guessed["proposed_tokens"]


def test_histories_do_preempt_and_reuse():
    """The property above would hold for a scheduler that does neither."""
    shape = Shape(1, 64, mixed=False, pool_tokens=400)
    history = History(shape)
    history.add(list(range(40)), 10, Priority.LOW)
    for _ in range(5):
        history.step()
    history.add([7] * 20, 3, Priority.HIGH)
    history.run_out()
    assert history.scheduler.preemptions == 1
    assert history.reused >= 40, "the preempted row comes back with its keys and values"
    assert [row.request.priority for row in history.finished] == [Priority.HIGH, Priority.LOW]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("slots", "mixed", "chunk"), [(1, False, 1), (3, True, 1), (2, False, 8)])
def test_histories_do_go_back_to_checkpoints(slots, mixed, chunk, whole):
    """Random ones would hold without that. Eight rows with a beginning of 61 tokens in common."""
    shape = Shape(slots, 64, mixed, can_trim=False, pool_tokens=4000, chunk=chunk, whole=whole)
    history = History(shape)
    rows = [history.add([*range(201, 262), 300 + i, *range(20)], 3) for i in range(8)]
    history.run_out()
    assert [row.output for row in rows] == [expected_output(row.request) for row in rows]
    assert sum(row.reused // chunk * chunk == row.reused >= 48 for row in rows) >= 6
    assert whole or history.kv.rewinds


def add(scheduler: Scheduler, request: Request, now: float = 0.0) -> Sequence:
    sequence = make_sequence(request, now)
    scheduler.add(sequence)
    return sequence


def running(scheduler: Scheduler, now: float = 0.0) -> list[Sequence]:
    """Who has a slot after a step was planned."""
    scheduler.schedule(now)
    return list(scheduler.kv.running)


def test_waiting_rows_are_admitted_by_priority_then_arrival():
    scheduler = make_scheduler(1, 8, mixed=True)
    order = [Priority.LOW, Priority.NORMAL, Priority.CRITICAL, Priority.NORMAL, Priority.HIGH]
    rows = [add(scheduler, Request([1], priority=priority)) for priority in order]
    admitted = []
    while not scheduler.idle:
        (row,) = running(scheduler)
        admitted.append(rows.index(row))
        scheduler.remove(row)
    assert admitted == [2, 4, 1, 3, 0]


def test_a_low_priority_is_served_under_unending_critical_load():
    history = History(Shape(1, 16, mixed=False, settings=SchedulerSettings(aging_s=0.2)))
    low = history.add([1], 1, Priority.LOW)
    for _ in range(120):  # one arrives for each that is served: the queue never empties
        history.add([2], 1, Priority.CRITICAL)
        history.step()
        if low in history.finished:
            break
    assert low in history.finished
    assert 0.5 < history.now < 0.8  # three agings


@pytest.mark.parametrize(("arrival", "sent_back"), [(2.9, True), (3.1, False)])
def test_a_row_that_has_aged_is_not_sent_back_for_newcomers(arrival, sent_back):
    scheduler = make_scheduler(1, 8, True, SchedulerSettings(aging_s=1.0))
    low = add(scheduler, Request([1], priority=Priority.LOW), now=0.0)
    assert running(scheduler) == [low]
    newcomer = add(scheduler, Request([1], priority=Priority.CRITICAL), now=arrival)
    assert running(scheduler, arrival) == [newcomer if sent_back else low]
    assert scheduler.preemptions == sent_back


def test_rows_of_adapters_that_run_go_first_where_each_takes_a_pass_of_its_own():
    history = History(Shape(2, 64, mixed=False, adapters_apart=True))
    for number in range(8):
        history.add([number], 3 + number % 3, adapter="ab"[number % 2])
    history.run_out()
    names = "".join(row.request.adapter or "" for row in history.finished)
    assert names == "aaaabbbb"


@pytest.mark.parametrize(
    ("lengths", "passes"),
    [
        ([9] * 6, [6 * [9]]),
        ([9, 20, 9, 20], [4 * [9], [11], [11]]),  # 11 of each are left, with a slot between
        ([20, 20, 9], [3 * [9], 2 * [11]]),
        ([60, 60, 60], [2 * [60], [60]]),  # more would not be faster
        ([100, 9], [[100], [9]]),  # nor it
        ([9, 100], [2 * [9], [32], [59]]),
    ],
)
def test_prompts_in_slots_side_by_side_go_in_together(lengths, passes, monkeypatch):
    history = History(Shape(6, 128, mixed=False, equal_prefills=True))
    for number, length in enumerate(lengths):
        history.add([10 * number + i for i in range(length)], 2)
    found, check = [], history.check

    def noted(step):
        found.append([len(row.tokens) for row in step.rows])
        check(step)

    monkeypatch.setattr(history, "check", noted)
    history.run_out()
    assert [lengths for lengths in found if max(lengths) > 1] == passes


def test_a_prompt_waits_for_none_that_is_less_urgent():
    scheduler = make_scheduler(4, 128, mixed=False)
    scheduler._capabilities = replace(scheduler._capabilities, equal_prefills=True)
    wanted = [Priority.LOW, Priority.CRITICAL, Priority.CRITICAL, Priority.LOW]
    rows = [
        add(scheduler, Request([10 * number + i for i in range(9)], priority=one))
        for number, one in enumerate(wanted)
    ]
    step = scheduler.schedule(0.0)
    assert set(step.sequences) == {rows[1], rows[2]}


@given(
    st.lists(st.tuples(st.floats(0, 20), st.sampled_from(Priority), adapters), max_size=12),
    st.lists(adapters, max_size=3),
    st.integers(1, 6),
)
def test_none_is_overtaken_by_what_is_less_urgent_or_came_an_aging_later(arrived, used, free):
    scheduler = make_scheduler(1, 8, mixed=True, settings=SchedulerSettings(aging_s=5.0))
    rows = [
        add(scheduler, Request([1], priority=priority, adapter=adapter), now)
        for now, priority, adapter in arrived
    ]
    rows.sort(key=Sequence.rank)
    others = [make_sequence(Request([1], adapter=adapter)) for adapter in used]
    chosen = in_company(rows, others, free, 5.0)
    assert len(chosen) == len(set(chosen)) == min(free, len(rows))
    for at, one in enumerate(chosen):
        overtaken = [row for row in rows if row.rank() < one.rank() and row not in chosen[:at]]
        for row in overtaken:
            assert one.state.key <= row.state.key + 5.0
            assert one.request.priority <= row.request.priority


def test_only_what_is_less_urgent_is_sent_back():
    scheduler = make_scheduler(1, 8, mixed=True)
    asked = ((1.0, Priority.NORMAL), (2.0, Priority.NORMAL), (3.0, Priority.LOW))
    head, same, lower = (add(scheduler, Request([1], priority=p), now) for now, p in asked)
    assert preemptible(head, [same, lower]) == [lower]


def test_who_is_out_of_time_ends_wherever_it_is():
    history = History(Shape(1, 64, mixed=False))
    inside = history.add([1] * 30, 50, timeout_s=0.05)
    outside = history.add([2] * 30, 50, timeout_s=0.03)
    history.run_out()
    assert history.expired == [outside, inside]
    assert 0 < len(inside.output) < 50
    assert history.cache.free_slots == [0]


def test_any_number_of_tokens_can_be_committed():
    """Further ones go through the model before the next is sampled; none leaves all as it was."""
    scheduler = make_scheduler(1, 8, mixed=True)
    row = add(scheduler, Request([1, 2], SamplingParams(max_tokens=50)))
    scheduler.commit(scheduler.schedule(0.0), [[7, 8, 9]])
    step = scheduler.schedule(0.0)
    assert [list(one.tokens) for one in step.rows] == [[7, 8, 9]]
    assert step.sampled == (row,)
    scheduler.commit(step, [[]])
    assert row.output == [7, 8, 9]
    assert row.pending == 0


@pytest.mark.parametrize("mixed", [False, True])
def test_prefill_keeps_decoding_rows_waiting_no_longer_than_asked(mixed):
    """On a clock by which a prompt token takes 10 ms: chunks are cut to fit half a second."""
    limit, per_token = 0.5, 0.01
    scheduler = make_scheduler(2, 512, mixed, SchedulerSettings(max_stall_s=limit))
    add(scheduler, Request([1], SamplingParams(max_tokens=500)))
    scheduler.commit(scheduler.schedule(0.0), [[7]], per_token)
    long = add(scheduler, Request(list(range(2000)), SamplingParams(max_tokens=1)))
    stall, stalls = 0.0, []
    while not long.decoding:
        step = scheduler.schedule(0.0)
        seconds = step.prefill * per_token
        stall += seconds
        if step.decoded:
            stalls.append(stall)
            stall = 0.0
        scheduler.commit(step, [[7]] * len(step.sampled), seconds)
    assert max(stalls) <= limit + 32 * per_token  # the smallest chunk may come on top
    assert sum(stalls) == pytest.approx(2000 * per_token, rel=0.1)


def test_without_a_limit_prompts_go_in_before_rows_decode():
    scheduler = make_scheduler(3, 16, False, SchedulerSettings(max_stall_s=None))
    for first in range(3):
        add(scheduler, Request([first] * 30, SamplingParams(max_tokens=2)))
    kinds = []
    for _ in range(7):
        step = scheduler.schedule(0.0)
        kinds.append("decode" if step.decoded else "prefill")
        scheduler.commit(step, [[7]] * len(step.sampled), 0.1)
    assert kinds == ["prefill"] * 6 + ["decode"]


def test_static_batches_wait_for_company_and_for_each_other():
    scheduling = SchedulerSettings(strategy="static", batch_timeout_s=0.5)
    scheduler = make_scheduler(3, 16, False, scheduling)
    first = add(scheduler, Request([1, 2]), now=0.0)
    assert running(scheduler, 0.1) == [], "two more may come"
    assert running(scheduler, 0.6) == [first], "nobody came in time"
    others = [add(scheduler, Request([1, 2]), now=0.6) for _ in range(3)]
    assert running(scheduler, 2.0) == [first], "the batch in work comes first"
    scheduler.remove(first)
    assert running(scheduler, 2.0) == others


def test_buckets_hold_prompts_of_about_one_length():
    scheduling = SchedulerSettings(strategy="bucketed", batch_timeout_s=0.0)
    scheduler = make_scheduler(4, 64, False, scheduling)
    rows = [add(scheduler, Request([1] * length)) for length in (20, 300, 25, 310)]
    assert running(scheduler) == [rows[0], rows[2]]


def test_a_preempted_reproducible_row_repeats_its_answer_token_by_token():
    """Its prompt's whole chunks come back from the pool; the history checks how all goes in."""
    history = History(Shape(1, 64, mixed=False, pool_tokens=400, chunk=16))
    low = history.add(list(range(40)), 10, Priority.LOW)
    for _ in range(6):  # chunks of 16, 16 and 8, then three tokens
        history.step()
    assert len(low.output) == 4
    history.add([7] * 20, 3, Priority.HIGH)
    history.run_out()
    assert history.scheduler.preemptions == 1
    assert history.reused == 32
    assert low.output == expected_output(low.request)
