"""Pictures of the batch screen and its jobs, with figures that are given."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.widgets import Input, Static

from app.batch.watch.records import KnownJob
from app.tui.screens import batch_panels
from app.tui.screens.batch import BatchTable
from app.tui.screens.batch_panels import BatchJobsScreen, RowPane
from app.tui.widgets.batch_form import Aside, BatchForm, figures_of
from tests.app.tui.batch_app import ROWS, BatchApp, frozen
from tests.app.tui.conftest import SIZES
from tests.support import wait_until

COUNTED = {
    "valid": 47, "invalid": 1, "prompt_tokens": 716, "most_answer_tokens": 3008, "context": 1024,
    "longest_prompt": {"tokens": 17}, "memory": {"total": 654_311_424}, "slots": 2,
    "free_memory": 13_314_398_617, "most_seconds": 26.3,
    "problems": [{"where": "line 3", "message": "the row has no 'prompt' or 'messages'"}],
}  # fmt: skip


@pytest.fixture
def app(services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchApp:
    rows = ({"id": f"r{i}", "prompt": f"What is {i} plus {i + 1}?"} for i in range(ROWS))
    lines = [*map(json.dumps, rows)]
    lines[2] = '{"question": "What?"}'
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "questions.jsonl").write_text("".join(line + "\n" for line in lines))
    monkeypatch.chdir(folder)
    return BatchApp(services)


def test_a_new_job(snap: Any, app: BatchApp) -> None:
    async def fill(pilot: Any) -> None:
        form = app.batch.query_one(BatchForm)
        form.fill(input="questions.jsonl", model="pebble-built", max_tokens="64", slots="2")
        counts = form.query_one("#form-counts", Aside)
        told = counts.query_one(Static)
        await wait_until(lambda: "What is wrong" in str(told.content))  # the last that a look does
        form.refuse("model", "")
        counts.show(figures_of(COUNTED, None), wrap=True)
        form.query_one("#input", Input).focus()

    assert snap(app, terminal_size=SIZES[1], run_before=fill)


def test_a_job_that_runs(snap: Any, app: BatchApp) -> None:
    async def show(pilot: Any) -> None:
        await app.batch.show(frozen())
        table, pane = app.batch.query_one(BatchTable), app.batch.query_one(RowPane)
        await wait_until(lambda: table.record is not None and pane.row is not None)

    assert snap(app, terminal_size=SIZES[1], run_before=show)


def test_the_jobs(snap: Any, app: BatchApp, monkeypatch: pytest.MonkeyPatch) -> None:
    states = (
        ("running", True, 48),
        ("running", False, 1_000_000),
        ("stopped", False, 200),
        ("killed", False, 9_000),
        ("gone", False, None),
    )
    jobs = [
        KnownJob(
            Path(f"/data/job{i}/answers.jsonl"),
            *(state, 1000.0 - 5000 * i, rows, own, rows and rows * 2 // 3),
        )
        for i, (state, own, rows) in enumerate(states)
    ]
    monkeypatch.setattr(batch_panels, "time", SimpleNamespace(time=lambda: 1010.0))
    monkeypatch.setattr(batch_panels, "known_jobs", lambda: jobs)

    async def show(pilot: Any) -> None:
        app.push_screen(BatchJobsScreen())
        await wait_until(lambda: getattr(app.screen, "found", None))

    assert snap(app, run_before=show)
