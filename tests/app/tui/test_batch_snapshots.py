"""Pictures of the batch screen and its panels, with figures that are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Static

from app.batch.journal.journal import journal_path
from app.batch.report.eta import Left
from app.batch.watch.job import JobView, Phase, WatchedJob
from app.batch.watch.records import KnownJob
from app.batch.watch.rows import SpeedAt
from app.tui.screens import batch_panels
from app.tui.screens.batch import BatchScreen
from app.tui.screens.batch_panels import (
    BatchFilesScreen,
    BatchJobsScreen,
    BatchLeaveScreen,
    BatchRowScreen,
    RowPane,
)
from app.tui.widgets.batch_form import Aside, BatchForm, figures_of
from app.tui.widgets.batch_job import BatchTable
from tests.app.tui.batch_app import BatchApp
from tests.app.tui.conftest import SIZES
from tests.support import wait_until

ROWS = 48
COUNTED = {
    "valid": 47, "invalid": 1, "prompt_tokens": 716, "most_answer_tokens": 3008, "context": 1024,
    "longest_prompt": {"tokens": 17}, "memory": {"total": 654_311_424}, "slots": 2,
    "free_memory": 13_314_398_617, "most_seconds": 26.3,
    "problems": [{"where": "line 3", "message": "the row has no 'prompt' or 'messages'"}],
}  # fmt: skip


class Frozen(WatchedJob):
    """A job whose journal is read once, at a moment that is given."""

    given = JobView(
        output="answers.jsonl",
        phase=Phase.RUNNING,
        own=True,
        rows=ROWS,
        answered=20,
        failed=1,
        cached=4,
        running=2,
        slots=2,
        elapsed_s=42.0,
        time_left=Left(60.0, 66.0, 72.0),
        prefill_tps_now=212.4,
        prefill_tps=1034.0,
        decode_tps_now=118.2,
        decode_tps=113.9,
        kv_tokens=612,
        kv_capacity=2048,
        memory_bytes=1_288_490_188,
        speeds=tuple(SpeedAt(i, 200.0 + 40 * (i % 7), 90.0 + 5 * (i % 6)) for i in range(42)),
        notes=("questions.jsonl, line 31: the row has no 'prompt' or 'messages'",),
    )

    @property
    def own(self) -> bool:
        return True

    def poll(self) -> bool:
        return False

    def view(self) -> JobView:
        return self.given


def journal_of(out: Path, said: Callable[[str], str] = str) -> None:
    """A job that is under way: rows of an earlier run, answers and an error of this one."""
    command = ["batch", "questions.jsonl", "answers.jsonl", "--model", "pebble.gguf"]
    run = {
        "ingot": "batch-run", "at": 1000.0, "host": "there", "pid": 1, "born": 1.0,
        "command": command, "folder": ".", "rows": ROWS, "input_rows": ROWS, "invalid": 0,
        "reused": 0, "shard": None, "format": "jsonl", "input": "questions.jsonl",
    }  # fmt: skip

    def answer(i: int) -> dict[str, Any]:
        tokens = 30 + i % 11
        return {
            "response": said(f"{i} plus {i + 1} is {2 * i + 1}."),
            "finish_reason": "stop",
            "usage": {
                "prompt_tokens": 14 + i % 3, "completion_tokens": tokens, "cached_tokens": 8,
            },
            "timings": {
                "prefill_tps": 900.0 + 17 * (i % 9), "decode_tps": 55.0 + i % 8,
                "ttft_s": 0.05, "total_s": 0.7,
            },
            "created": 1001.0 + i,
        }  # fmt: skip

    def row(i: int, given: dict[str, Any]) -> dict[str, Any]:
        return {"key": f"{i:032x}", "index": i, "ok": "error" not in given, "answer": given}

    late = {
        "error": {"code": "timeout", "message": said("not finished within 5 s (--row-timeout)")}
    }
    lines = [{"ingot": "batch-journal", "version": 2, "settings": {"model": "pebble.gguf"}}, run]
    lines += [row(i, answer(i)) for i in range(4)]
    lines += [run, *(row(i, answer(i)) for i in range(4, 20)), row(20, late)]
    journal_path(out).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def app(services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchApp:
    folder = tmp_path / "work"
    folder.mkdir()
    rows = ({"id": f"r{i}", "prompt": f"What is {i} plus {i + 1}?"} for i in range(ROWS))
    lines = [*map(json.dumps, rows)]
    lines[2] = '{"question": "What?"}'
    (folder / "questions.jsonl").write_text("".join(line + "\n" for line in lines))
    monkeypatch.chdir(folder)
    return BatchApp(services)


def screen_of(app: Any) -> BatchScreen:
    screen = app.get_screen_stack("batch")[0]
    assert isinstance(screen, BatchScreen)
    return screen


def frozen(said: Callable[[str], str] = str) -> Frozen:
    out = Path("answers.jsonl")
    journal_of(out, said)
    job = Frozen(out)
    while job.journal.read():
        pass
    job.rows.set_running((21, 22))
    return job


async def show_job(pilot: Any) -> None:
    screen = screen_of(pilot.app)
    await screen.show(frozen())
    table, pane = screen.query_one(BatchTable), screen.query_one(RowPane)
    await wait_until(lambda: table.record is not None and pane.row is not None)
    await pilot.pause()  # what lies under a panel is not laid out any more


@pytest.mark.parametrize("size", SIZES)
def test_a_new_job(snap: Any, app: BatchApp, size: tuple[int, int]) -> None:
    async def fill(pilot: Any) -> None:
        screen = screen_of(pilot.app)
        form = screen.query_one(BatchForm)
        form.fill(input="questions.jsonl", model="pebble-built", max_tokens="64", slots="2")
        counts = screen.query_one("#form-counts", Aside)
        told = counts.query_one(Static)
        await wait_until(lambda: "What is wrong" in str(told.content))  # the last that a look does
        form.refuse("model", "")
        counts.show(figures_of(COUNTED, None), wrap=True)
        screen.query_one("#input", Input).focus()

    assert snap(app, terminal_size=size, run_before=fill)


@pytest.mark.parametrize("size", SIZES)
def test_a_job_that_runs(snap: Any, app: BatchApp, size: tuple[int, int]) -> None:
    assert snap(app, terminal_size=size, run_before=show_job)


@pytest.mark.parametrize("size", SIZES)
def test_a_row(snap: Any, app: BatchApp, size: tuple[int, int]) -> None:
    async def show(pilot: Any) -> None:
        await show_job(pilot)
        pilot.app.push_screen(BatchRowScreen(screen_of(pilot.app).job, 12))  # type: ignore[arg-type]
        await wait_until(lambda: pilot.app.screen.row)

    assert snap(app, terminal_size=size, run_before=show)


def known(states: Sequence[tuple[str, bool, int | None]]) -> list[KnownJob]:
    return [
        KnownJob(
            Path(f"/data/job{i}/answers.jsonl"),
            state,
            1000.0 - 5000 * i,
            rows,
            own,
            rows and rows * 2 // 3,
        )  # type: ignore[arg-type]
        for i, (state, own, rows) in enumerate(states)
    ]


@pytest.mark.parametrize("size", SIZES)
def test_the_jobs(
    snap: Any, app: BatchApp, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = known(
        [
            ("running", True, 48),
            ("running", False, 1_000_000),
            ("stopped", False, 200),
            ("killed", False, 9_000),
            ("gone", False, None),
        ]
    )

    monkeypatch.setattr(batch_panels, "_now", lambda: 1010.0)
    monkeypatch.setattr(batch_panels, "known_jobs", lambda: jobs)

    async def show(pilot: Any) -> None:
        pilot.app.push_screen(BatchJobsScreen())
        await wait_until(lambda: getattr(pilot.app.screen, "found", None))

    assert snap(app, terminal_size=size, run_before=show)


@pytest.mark.parametrize("size", SIZES)
def test_the_files(snap: Any, app: BatchApp, size: tuple[int, int]) -> None:
    Path("texts").mkdir()
    Path("more.csv").write_text("prompt\nWhat?\n")
    journal_of(Path("answers.jsonl"))

    async def show(pilot: Any) -> None:
        pilot.app.push_screen(BatchFilesScreen(Path.cwd()))
        await pilot.pause()
        tree = pilot.app.screen.query_one("_Tree")
        await wait_until(lambda: len(tree.root.children) == 3)

    assert snap(app, terminal_size=size, run_before=show)


@pytest.mark.parametrize("size", SIZES)
def test_leaving(snap: Any, app: BatchApp, size: tuple[int, int]) -> None:
    async def show(pilot: Any) -> None:
        await show_job(pilot)
        pilot.app.push_screen(BatchLeaveScreen("answers.jsonl", lambda: None))
        await pilot.pause()

    assert snap(app, terminal_size=size, run_before=show)
