"""Jobs of tests, without files: rows, and their answers by some engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.batch.input.source import Row
from app.batch.interrupt import Interrupts
from app.batch.schedule.job import Job, RequestDefaults
from app.batch.schedule.pool_engine import PoolEngine
from app.openai.answer import Answer
from app.openai.task import Task
from app.prompts import PromptStyle
from runtimes.request import SamplingParams

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
POISON = "Please die now"
# Its answer would take seconds: it has not ended when the kill comes, however late that is.
LONG = SamplingParams(max_tokens=4000, ignore_eos=True)


def rows_of(prompts: Sequence[str], **task: Any) -> list[Row]:
    """Rows whose tasks have these fields; that of the poison takes long."""
    long = {"sampling": LONG}
    tasks = [Task((), (text,), **(long if text == POISON else task)) for text in prompts]
    return [Row(i, i + 1, i, task) for i, task in enumerate(tasks)]


def run(
    members: Sequence[PoolEngine],
    rows: Sequence[Row],
    tick: Callable[[], None] = lambda: None,
    **defaults: Any,
) -> tuple[Job, dict[int, Answer]]:
    """The job after its end, and each row's answer: every row has one, and only one."""
    given = {"sampling": PARAMS, "style": PromptStyle(raw=True), **defaults}
    results: dict[int, Answer] = {}

    def deliver(row: Row, answer: Answer) -> None:
        assert row.index not in results
        results[row.index] = answer

    job = Job(members, RequestDefaults(**given), deliver)
    assert job.run(iter(rows), Interrupts(), tick)
    assert sorted(results) == sorted(row.index for row in rows)
    return job, results
