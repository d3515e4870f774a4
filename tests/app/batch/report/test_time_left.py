"""Estimates of a job's time left against jobs that are played through step by step."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator

import pytest

from app.batch.input.source import Row
from app.batch.report.eta import (
    BegunRows,
    Forecast,
    Left,
    LengthCounts,
    Rest,
    RowCounts,
    RowPace,
    fit,
    left_json,
    left_of,
    time_left,
)
from app.openai.task import Task
from runtimes.engine.metrics import EngineStats, Metrics
from runtimes.request import SamplingParams

MOST = 512
PROMPT, PREFILL = 30, 1000.0
Draw = Callable[[random.Random], float]
Moment = tuple[float, float, Left]  # the part of the rows that are done, the time, the estimate


def step_s(rows: int) -> float:
    return 0.02 + 0.004 * rows


def played(
    lengths: list[int], slots: int, most: int = MOST, known: LengthCounts | None = None
) -> tuple[list[Moment], float]:
    """A job whose rows take the free slots in turn, with an estimate after every fiftieth of them,
    and the time that it took in the end."""
    counts = LengthCounts() if known is None else known
    waiting, running = lengths[::-1], list[list[int]]()
    moments, seconds, done = list[Moment](), 0.0, 0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append([0, waiting.pop()])
            seconds += PROMPT / PREFILL
        rows = len(running)
        seconds += step_s(rows)
        for row in running:
            row[0] += 1
        ended = [row for row in running if row[0] == min(row[1], most)]
        for tokens, _ in ended:
            counts.add(tokens)
        running = [row for row in running if row[0] < min(row[1], most)]
        before, done = done, done + len(ended)
        if done * 50 // len(lengths) > before * 50 // len(lengths):
            rest = Rest(
                running=[(tokens, most) for tokens, _ in running],
                waiting=len(waiting),
                most=most,
                prompt_tokens=len(waiting) * PROMPT,
                slots=slots,
            )
            pace = RowPace(PREFILL, 1 / step_s(rows), rows)
            moments.append((done / len(lengths), seconds, time_left(rest, counts, pace)))
    return moments, seconds


def wrong(moments: list[Moment], whole: float) -> Iterator[Moment]:
    """The estimates from 5% on that are off by more than a factor of 1.5 and by more than 5% of
    the whole: the end of a single last row is anyone's guess."""
    for part, at, left in moments:
        true = whole - at
        likely = left.likely_s
        if part < 0.05 or (likely is not None and abs(likely - true) <= 0.05 * whole):
            continue
        if likely is None or not 1 / 1.5 <= likely / true <= 1.5:
            yield part, true, left


KINDS: dict[str, Draw] = {
    "equal": lambda chance: 100,
    "about equal": lambda chance: chance.gauss(100, 8),
    "even": lambda chance: chance.uniform(10, 200),
    "log-normal": lambda chance: chance.lognormvariate(math.log(100), 0.6),
    "half are cut": lambda chance: chance.lognormvariate(math.log(MOST), 0.6),
    "all are cut": lambda chance: 2 * MOST,
}


@pytest.mark.parametrize("kind", KINDS)
def test_within_a_factor_of_one_and_a_half(kind: str) -> None:
    chance, known = random.Random(8), LengthCounts()
    lengths = [max(1, round(KINDS[kind](chance))) for _ in range(450)]
    moments, whole = played(lengths[:300], 4, known=known)
    assert len(moments) > 20
    assert not list(wrong(moments, whole))
    # When the job is resumed, lengths from before are known.
    rest = Rest([(0, MOST)] * 8, 142, MOST, 150 * PROMPT, 8)
    left = time_left(rest, known, RowPace(PREFILL, 1 / step_s(8), 8))
    _, whole = played(lengths[300:], 8)
    assert left.likely_s is not None
    assert 1 / 1.3 < left.likely_s / whole < 1.3


@pytest.mark.parametrize("seed", [9, 12])
def test_what_nobody_has_seen_is_told_as_a_range(seed: int) -> None:
    """Half of the rows take long, and none of these has ended when a tenth is done."""
    chance = random.Random(seed)
    moments, whole = played([chance.choice((5, 300)) for _ in range(200)], 16)
    for part, _, left in wrong(moments, whole):
        assert part > 0.5 or not left.sure
        assert left.sure or " to " in str(left)
    assert sum(left.sure for _, _, left in moments) > len(moments) / 2


def test_before_any_answer_only_the_limit_is_known() -> None:
    rest = Rest([(100, 200)] * 4, 4, 200, 0, 4)
    left = time_left(rest, LengthCounts(), RowPace(PREFILL, 10.0, 4))
    assert left.likely_s is None
    assert left.high_s == pytest.approx(30)
    assert str(left) == "at most 30.0 s left"
    assert left_of(left_json(left)) == left
    assert left_json(None) == {"left_s": None, "left_least_s": None, "left_most_s": None}
    assert left_of(left_json(None)) is None
    left = Left(5000.0, 6000.0, 7000.0)
    assert left.after(-10.0) == left, "a clock that was set back adds nothing"
    assert left.after(10.0) == Left(4990.0, 5990.0, 6990.0)


def test_lengths_that_ended_early_are_not_the_mean_of_all() -> None:
    """Evenly from 50 to 150 tokens, of which the shortest ones are all that has ended."""
    counts = LengthCounts()
    for tokens in (52, 57, 61, 66, 70):
        counts.add(tokens)
    drawn, unseen = fit(counts, [72] * 11, MOST)
    assert 70 < sum(drawn) / len(drawn) < 150
    assert 0.5 < unseen < 1
    assert drawn == sorted(drawn)


NOTHING = SamplingParams(max_tokens=0, prompt_logprobs=0)


def test_rows_without_answers_take_what_rows_took() -> None:
    begun, counts = BegunRows(), RowCounts()
    forecast = Forecast(100, 5000, 10.0)
    for number in range(12):
        begun.add(Row(number, number + 1, number, Task((), ("x",))), 5, NOTHING)
    figures = Metrics().figures()
    others = {one.name for one in dataclasses.fields(EngineStats)} - figures.keys()
    stats = EngineStats(**figures, **dict.fromkeys(others, 0))
    assert forecast.left(12.0, stats, [], counts, begun, draining=False) is None
    counts = dataclasses.replace(counts, answered=9, failed=1)
    assert forecast.left(15.0, stats, [], counts, begun, draining=False) == Left(45.0, 45.0, 45.0)
    assert forecast.left(15.0, stats, [], counts, begun, draining=True) == Left(1.0, 1.0, 1.0)
    # One row among them says a word: the mean of the limits is nearer to 0 than to 1.
    begun.add(Row(12, 13, 12, Task((), ("x",))), 5, SamplingParams(max_tokens=1))
    counts.lengths.add(0)
    forecast.left(16.0, stats, [], counts, begun, draining=False)
    later = dataclasses.replace(stats, decode_tokens=1, decode_s=1.0, decoding=1)
    assert forecast.left(17.0, later, [], counts, begun, draining=False) is not None


def test_one_row_of_sixteen_does_not_speak_for_all() -> None:
    """Rows of about seven minutes' work: when the first one ends, the others are nearly done."""
    counts = LengthCounts()
    counts.add(400)
    rest = Rest([(390, MOST)] * 15, 0, MOST, 0, 16)
    left = time_left(rest, counts, RowPace(PREFILL, 1.0, 16))
    assert left.likely_s is not None
    assert left.likely_s < 120
    assert left.high_s <= 122


def test_a_full_job_takes_any_number_of_rows_at_once() -> None:
    counts = LengthCounts()
    for tokens in (50, 100, 150) * 100:
        counts.add(tokens)
    few, many = (
        time_left(Rest([], rows, MOST, 0, 8), counts, RowPace(PREFILL, 10.0, 8)).likely_s
        for rows in (1000, 10**9)
    )
    assert few is not None
    assert many is not None
    assert many / few == pytest.approx(10**6, rel=0.02)
