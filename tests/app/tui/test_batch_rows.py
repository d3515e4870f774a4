"""The rows of a job on the screen: kinds, order, words, and the row beside the table."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Static
from textual.widgets._progress_bar import Bar

from app.batch.journal.journal import journal_path
from app.batch.watch.job import JobView, Phase, attach
from app.tui.screens.batch import BatchScreen
from app.tui.screens.batch_panels import BatchRowScreen, RowPane
from app.tui.widgets.batch_job import BatchTable, JobHeader, Words, slots_of, strip_of
from tests.app.tui.batch_app import BatchApp
from tests.support import wait_until

MANY = 50_000
soon = partial(wait_until, seconds=60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def journal_of(folder: Path, rows: int) -> Path:
    """A job that has ended: every tenth row failed, answers of 1 to 97 tokens."""
    out = folder / "answers.jsonl"
    prompts = (json.dumps({"prompt": f"Question {i}?"}) + "\n" for i in range(rows))
    (folder / "in.jsonl").write_text("".join(prompts))
    run = {
        "ingot": "batch-run", "at": 1000.0, "host": "there", "pid": 1, "born": 1.0,
        "command": ["batch", "in.jsonl", "answers.jsonl", "--model", "pebble.gguf"],
        "folder": str(folder), "rows": rows, "input_rows": rows, "invalid": 0, "reused": 0,
        "shard": None, "format": "jsonl", "input": "in.jsonl",
    }  # fmt: skip

    def row(i: int) -> dict[str, Any]:
        answer: dict[str, Any] = {"error": {"code": "timeout", "message": f"row {i} was late"}}
        if i % 10:
            answer = {
                "response": f"Answer {i}.", "finish_reason": "stop", "created": 1001.0,
                "usage": {"prompt_tokens": 9, "completion_tokens": 1 + i % 97},
                "timings": {"decode_tps": 50.0 + i % 13},
            }  # fmt: skip
        return {"key": f"{i:032x}", "index": i, "ok": i % 10 > 0, "answer": answer}

    lines = [{"ingot": "batch-journal", "version": 2, "settings": {}}, run, *map(row, range(rows))]
    end = {"ingot": "batch-end", "unfinished": 0}
    journal_path(out).write_text("".join(json.dumps(line) + "\n" for line in [*lines, end]))
    return out


def screen_of(app: Any) -> BatchScreen:
    screen = app.get_screen_stack("batch")[0]
    assert isinstance(screen, BatchScreen)
    return screen


async def shown(pilot: Any, out: Path, rows: int) -> BatchTable:
    screen = screen_of(pilot.app)
    await screen.show(attach(out))
    table = screen.query_one(BatchTable)
    await soon(lambda: len(table.rows) == rows and table.sorting)
    await pilot.pause()
    return table


def tokens(index: int) -> int:
    return 1 + index % 97 if index % 10 else 0


async def test_kinds_and_order_by_key_and_by_mouse(services: Any, folder: Path) -> None:
    app = BatchApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        table = await shown(pilot, journal_of(folder, 200), 200)
        failed = [i for i in range(200) if i % 10 == 0]
        good = [i for i in range(200) if i % 10]
        for key, kind, rows in (("x", "failed", failed), ("d", "done", good), ("w", "running", [])):
            await pilot.press(key)
            await soon(lambda rows=rows: list(table.rows) == rows)
            await pilot.press(key)
            await soon(lambda: len(table.rows) == 200)
            await pilot.click(f"#kind-{kind}")
            await soon(lambda rows=rows: list(table.rows) == rows)
            await pilot.click("#kind-all")
            await soon(lambda: len(table.rows) == 200)

        # A click on a title sorts, the figures' largest first; another one turns that round.
        most = sorted(range(200), key=lambda i: (-tokens(i), i))
        least = sorted(range(200), key=lambda i: (tokens(i), i))
        title = table.render_line(0).text.index("answer")
        await pilot.click(BatchTable, offset=(title, 0))
        await soon(lambda: list(table.rows) == most)
        assert "answer▼" in table.render_line(0).text
        await pilot.click(BatchTable, offset=(title, 0))
        await soon(lambda: list(table.rows) == least)
        await pilot.press("alt+u")
        await soon(lambda: list(table.rows) == most)
        await pilot.press("alt+s")
        await soon(lambda: table.sorting == ("speed", True))
        speeds = [50 + i % 13 if i % 10 else 0 for i in table.rows]
        assert speeds == sorted(speeds, reverse=True)
        await pilot.press("alt+s")
        await soon(lambda: list(table.rows) == list(range(200)))


async def test_the_columns_stand_still(services: Any, folder: Path) -> None:
    """Whatever a row's number is."""
    app = BatchApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        table = await shown(pilot, journal_of(folder, 2000), 2000)
        at = []
        for index in (1, 11, 111, 1111):
            assert table.go_to(index)
            await pilot.pause()
            y = table.cursor - table.scroll_offset.y + 1
            at.append(table.render_line(y).text.index("done"))
        assert len(set(at)) == 1


async def test_words_are_found(services: Any, folder: Path) -> None:
    app = BatchApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        table = await shown(pilot, journal_of(folder, 200), 200)
        await pilot.press("slash", *"answer 19")
        await soon(lambda: list(table.rows) == [19, 119, *range(191, 200)])
        await pilot.press("enter")
        assert app.focused is table
        await pilot.click(Words)
        await pilot.press("escape")
        await soon(lambda: len(table.rows) == 200)
        assert app.focused is table
        await pilot.press("x", "slash", *"LATE")
        await soon(lambda: len(table.rows) == 20)
        await pilot.press("escape", "slash", *"nowhere")
        await soon(lambda: len(table.rows) == 0)


async def test_the_row_under_the_cursor_is_beside_the_table(services: Any, folder: Path) -> None:
    app = BatchApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        table = await shown(pilot, journal_of(folder, 200), 200)
        pane = app.screen.query_one(RowPane)
        text = pane.query_one("#row-text", Static)
        await soon(lambda: "row 0 was late" in str(text.content))
        assert "Question 0?" in str(text.content)
        await pilot.press("down", "down")
        await soon(lambda: "Answer 2." in str(text.content))
        assert pane.region.y == app.screen.query_one("#job-list").region.y
        await pilot.click(BatchTable, offset=(4, 4))
        await soon(lambda: "Answer 3." in str(text.content))
        await pilot.click(BatchTable, offset=(4, 4))
        await soon(lambda: isinstance(app.screen, BatchRowScreen))
        await pilot.press("escape")
        assert table.record == 3
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert pane.region.y >= app.screen.query_one("#job-list").region.bottom


async def test_fifty_thousand_rows(services: Any, folder: Path) -> None:
    """Only the rows in sight are read; the cursor stays on its row when the order changes."""
    app = BatchApp(services)
    async with app.run_test(size=(80, 24)) as pilot:
        table = await shown(pilot, journal_of(folder, MANY), MANY)
        job = screen_of(app).job
        assert job is not None
        await pilot.press("end")
        assert table.record == MANY - 1
        assert f"{MANY - 1:,}" in table.render_line(table.size.height - 1).text
        for _ in range(20):
            await pilot.press("pageup")
        row = table.record
        assert row is not None
        assert job.journal._answers.cache_info().misses < 1000
        await pilot.press("alt+s", "alt+s", "alt+s")
        await soon(lambda: table.sorting == ("answer", True))
        assert tokens(table.rows[0]) == 97
        await pilot.press("home", "slash", *"49999")
        await soon(lambda: list(table.rows) == [49_999])


def test_the_strip_has_a_cell_for_each_slot() -> None:
    def strip(*counts: int) -> str:
        return "".join(text for text, _ in strip_of((counts[0], counts[1], counts[2])))

    assert strip(2, 1, 1) == "■■▪□"
    assert strip(0, 0, 4) == "□□□□"
    assert strip(128, 0, 128) == "■" * 24 + "□" * 24
    view = JobView(output="o", phase=Phase.RUNNING, own=True, slots=16, running=9, reading=2)
    other = JobView(output="o", phase=Phase.RUNNING, own=True, slots=16, running=16, reading=0)
    line = slots_of(view, 100).plain
    assert line == "Slots ■■■■■■■▪▪□□□□□□□ 16 ·  7 decoding ·  2 reading ·  7 free"
    assert len(line) == len(slots_of(other, 100).plain)


@pytest.mark.parametrize("plain", [True, False])
async def test_what_is_left_can_be_told_without_colours(
    services: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    if plain:
        monkeypatch.setenv("NO_COLOR", "1")
    app = BatchApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot, journal_of(folder, 20), 20)
        header = screen_of(app).query_one(JobHeader)
        view = JobView(output="o", phase=Phase.RUNNING, own=True, rows=100, answered=25)
        header.show(view, "in → o")
        await pilot.pause()
        bar = header.query_one(Bar)
        drawn = bar.render_lines(bar.region.reset_offset)[0].text
        assert ("━" * (bar.size.width // 2) in drawn) is not plain
        assert drawn.strip().startswith("━━")
