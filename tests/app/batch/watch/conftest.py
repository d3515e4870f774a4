"""Real jobs on Pebble, their records in a folder of the test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.batch.watch.form import JobForm
from app.batch.watch.job import Job
from tests.app.batch.watch.leftovers import kill_jobs


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    kill_jobs()


def write_rows(path: Path, count: int, *, bad: int = 0) -> Path:
    rows = [{"id": f"r{i}", "prompt": f"What is {i} plus {i + 1}?"} for i in range(count)]
    lines = [json.dumps(row) for row in rows] + ['{"nothing": 1}'] * bad
    path.write_text("".join(line + "\n" for line in lines))
    return path


def form_for(source: Path, model: Path, **more: str) -> JobForm:
    texts = {"max_tokens": "16", "slots": "2", "output": "out.jsonl", **more}
    return JobForm(input=source.name, model=str(model), **texts)


def wait(job: Job, ready: Callable[[], bool], limit: float = 120.0) -> None:
    """Follow a job until it is as wanted."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        job.poll()
        if ready():
            return
        time.sleep(0.02)
    raise AssertionError(f"not within {limit} s: {job.view()}")


def finish(job: Job) -> None:
    wait(job, lambda: not job.view().phase.active)
