"""Rows moved into the gaps that ended ones leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtimes.engine.engine import Engine
from runtimes.request import Request, SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from tests.runtimes.engine.gates import held
from tests.runtimes.engine.histories import History, Shape, expected_output
from tests.runtimes.ties import near_tie, near_ties

SLOTS = 6


@pytest.fixture(scope="module")
def engine(pebble_file: Path) -> Iterator[Engine]:
    settings = RunnerSettings(slots=SLOTS, context=256)
    with Engine.load(pebble_file, settings, SchedulerSettings(max_stall_s=None)) as engine:
        yield engine


def moved_history(tokens: int, token_bytes: int, row_s: float) -> History:
    """Two rows over five slots, in the first and the last, with as many tokens each."""
    history = History(Shape(5, 1000, mixed=False, token_bytes=token_bytes))
    history.cache.compacts = False
    for slot in range(5):
        history.add([slot + 1] * tokens, 40 if slot in (0, 4) else 3)
    while len(history.live) > 2:
        history.step()
    assert [row.slot for row in history.cache.running] == [0, 4]
    history.cache.compacts = True
    history.cache._row_s = 0.0
    history.cache.learn(2, 2 * row_s)
    return history


@pytest.mark.parametrize(
    ("token_bytes", "row_s", "worth"),
    [
        (10**6, 0.01, False),  # 0.1 s for some 100 tokens of a MB each, and 4 steps of 0.01 s a row
        (10**6, 0.1, True),
        (10**7, 50.0, False),  # 1 GB is not held twice
    ],
)
def test_a_row_is_moved_if_that_is_worth_its_time(token_bytes, row_s, worth):
    history = moved_history(50, token_bytes, row_s)
    step = history.schedule()
    assert history.cache.moves == worth
    assert [row.slot for row in step.sequences] == [0, 1 if worth else 4]
    history.run_out()
    for row in history.finished:
        assert row.output == expected_output(row.request)


def test_a_row_that_reads_and_one_that_decodes_are_both_lost_by_a_move():
    history = moved_history(50, 1, 1e9)
    history.cache._kv.breaks = 1
    history.add([9] * 400, 3)
    scheduler = history.scheduler
    scheduler._settings = SchedulerSettings(max_stall_s=0.02)
    scheduler._prefill_rate, scheduler._stalled = 2000.0, 0.0
    history.step()
    reading = history.cache.running[1]
    assert reading.slot == 1
    assert 0 < reading.computed < 400
    scheduler._stalled = 1.0  # the others' turn: nothing is read, and slot 1 is a gap
    assert [row.slot for row in history.schedule().sequences] == [0]
    assert scheduler.waiting == 2
    history.run_out()
    assert len(history.finished) == 6
    for row in history.finished:
        assert row.output == expected_output(row.request)


def test_the_last_row_of_many_runs_in_the_first_slot(engine):
    """Its text is that of the same request alone; the slots hold what they are thought to hold."""
    greedy = SamplingParams(ignore_eos=True, top_logprobs=2)
    asked = [
        Request([20 + i, 31, 7, 40 + i] * 6, replace(greedy, max_tokens=tokens))
        for i, tokens in enumerate((4, 7, 10, 13, 16, 60))
    ]
    alone = [engine.submit(one).result(60) for one in asked]
    engine.trim()
    kv = engine._core.kv
    kv._row_s, before = 1e9, kv.moves  # any move pays, on the fastest machine too
    with held(engine):
        streams = [engine.submit(one) for one in asked]
    done = [stream.result(60) for stream in streams]
    near_ties(alone, done, near_tie(engine.model))
    assert kv.moves > before
    # What ended rows have left behind has moved along: their prompts are found, and rightly.
    again = [engine.submit(one).result(60) for one in asked[:-1]]
    near_ties(alone[:-1], again, near_tie(engine.model))
    assert all(one.usage.cached_tokens >= len(asked[0].prompt) - 1 for one in again)
