"""How long a job takes that generates nothing: as long a row as its rows took."""

from __future__ import annotations

import dataclasses

from app.batch.input.source import Row
from app.batch.report.eta import BegunRows, Forecast, Left, RowCounts
from app.openai.task import Task
from runtimes.engine.metrics import EngineStats, Metrics
from runtimes.request import SamplingParams

NOTHING = SamplingParams(max_tokens=0, prompt_logprobs=0)


def test_rows_without_answers_take_what_rows_took() -> None:
    begun, counts = BegunRows(), RowCounts()
    forecast = Forecast(100, 5000, 10.0)
    for number in range(12):
        begun.add(Row(number, number + 1, number, Task((), ("x",))), 5, NOTHING)
    stats = EngineStats(
        **Metrics().figures(),
        slots=1,
        context=64,
        queued=2,
        running=0,
        prefilling=0,
        decoding=0,
        cached_tokens=0,
        kv_tokens=0,
        kv_capacity=64,
        prefix_bytes=0,
        prefix_hit_rate=0.0,
        preemptions=0,
        graphs_reused=None,
    )
    assert forecast.left(12.0, stats, [], counts, begun, draining=False) is None
    counts = dataclasses.replace(counts, answered=9, failed=1)
    assert forecast.left(15.0, stats, [], counts, begun, draining=False) == Left(45.0, 45.0, 45.0)
    assert forecast.left(15.0, stats, [], counts, begun, draining=True) == Left(1.0, 1.0, 1.0)
