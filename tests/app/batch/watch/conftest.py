"""Real jobs on Pebble, their records in a folder of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.batch.watch.form import JobForm, look
from app.batch.watch.job import WatchedJob
from app.batch.watch.process import BatchCommand
from tests.app.batch.watch.leftovers import kill_jobs
from tests.support import questions, until, write_rows


@pytest.fixture(autouse=True)
def _own(home: Path) -> Iterator[None]:
    yield
    kill_jobs()


def write_job(path: Path, count: int, *, bad: int = 0) -> Path:
    """The input of a job, with so many rows that ask nothing behind the others."""
    return write_rows(path, [*questions(count), *[{"nothing": 1}] * bad])


def form_for(source: Path, model: Path, **more: str) -> JobForm:
    texts = {"max_tokens": "16", "slots": "2", "output": "out.jsonl", **more}
    return JobForm(input=source.name, model=str(model), **texts)


def command_of(form: JobForm, folder: Path) -> BatchCommand:
    """The command of a form with nothing wrong, as the screen starts it."""
    assert not look(form, folder)
    return BatchCommand(form.spec(), folder)


def wait(job: WatchedJob, ready: Callable[[], object]) -> None:
    """Follow a job until it is as wanted."""
    until(lambda: (job.poll(), ready())[1])


def finish(job: WatchedJob) -> None:
    wait(job, lambda: not job.view().phase.active)
