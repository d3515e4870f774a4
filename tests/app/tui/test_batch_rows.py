"""The rows of a job on the screen: kinds, order, words, and the row beside the table."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Static
from textual.widgets._progress_bar import Bar

from app.batch.watch.job import JobView, Phase, attach
from app.tui.screens.batch import BatchTable, JobHeader, Words, slots_of
from app.tui.screens.batch_panels import BatchRowScreen, RowPane
from tests.app.tui.batch_app import BatchApp, answered, late, run_of, write_journal
from tests.support import wait_until

MANY = 5_000
soon = partial(wait_until, seconds=60)


@pytest.fixture
def app(services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchApp:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return BatchApp(services)


def tokens(index: int) -> int:
    return 1 + index % 97 if index % 10 else 0


async def shown(app: BatchApp, rows: int) -> BatchTable:
    """The table of a job that has ended: every tenth row failed."""
    prompts = (json.dumps({"prompt": f"Question {i}?"}) + "\n" for i in range(rows))
    Path("in.jsonl").write_text("".join(prompts))

    def row(i: int) -> dict[str, Any]:
        if tokens(i) == 0:
            return late(i, f"row {i} was late")
        return answered(i, f"Answer {i}.", 9, tokens(i), 50.0 + i % 13)

    out = Path("answers.jsonl").absolute()
    end = {"ingot": "batch-end", "unfinished": 0}
    write_journal(out, [run_of(rows, "in.jsonl"), *map(row, range(rows)), end])
    await app.batch.show(attach(out))
    table = app.batch.query_one(BatchTable)
    await soon(lambda: len(table.rows) == rows and table.sorting)
    return table


async def test_kinds_order_and_words_by_key_and_by_mouse(app: BatchApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        table = await shown(app, 200)
        await pilot.pause()
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
        for order, sign in ((most, "answer▼"), (least, "answer▲")):
            await pilot.click(BatchTable, offset=(title, 0))
            await soon(lambda order=order: list(table.rows) == order)
            assert sign in table.render_line(0).text
        await pilot.press("alt+u")
        await soon(lambda: list(table.rows) == most)
        await pilot.press("alt+s")
        await soon(lambda: table.sorting == ("speed", True))
        await pilot.press("alt+s")
        await soon(lambda: list(table.rows) == list(range(200)))

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


async def test_the_row_under_the_cursor_is_beside_the_table(app: BatchApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        table = await shown(app, 1200)
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
        columns = set()
        for index in (1, 11, 111, 1111):  # which stand still whatever a row's number is
            assert table.go_to(index)
            await pilot.pause()
            line = table.render_line(table.cursor - table.scroll_offset.y + 1)
            columns.add(line.text.index("done"))
        assert len(columns) == 1
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert pane.region.y >= app.screen.query_one("#job-list").region.bottom


async def test_many_rows(app: BatchApp) -> None:
    """Only the rows in sight are read."""
    async with app.run_test(size=(80, 24)) as pilot:
        table = await shown(app, MANY)
        job = app.batch.job
        assert job is not None
        await pilot.press("end", *["pageup"] * 3)
        row = table.record
        assert row is not None
        assert row < MANY - 5
        assert job.journal._answers.cache_info().misses < 1000
        table.show(range(MANY - 1, -1, -1))
        assert table.record == row, "the cursor stays on its row, however far that has moved"
        await pilot.press("alt+s", "alt+s", "alt+s")
        await soon(lambda: table.sorting == ("answer", True))
        assert tokens(table.rows[0]) == 97
        await pilot.press("home", "slash", *"4999")
        await soon(lambda: list(table.rows) == [4999])


async def test_slots_and_what_is_left_can_be_told_without_colours(
    app: BatchApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = JobView(output="o", phase=Phase.RUNNING, own=True, rows=100, answered=25, slots=16)
    view = replace(view, running=9, reading=2, kv_capacity=100, kv_tokens=7)
    line = "Slots ■■■■■■■▪▪□□□□□□□ 16 ·  7 decoding ·  2 reading ·  7 free"
    assert slots_of(view, len(line) + 8).plain == line
    assert slots_of(view, len(line) + 10).plain == f"{line}   KV   7%"
    assert slots_of(replace(view, slots=256), 200).plain.count("□") == 46
    monkeypatch.setenv("NO_COLOR", "1")
    app = BatchApp(app.services)
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(app, 20)
        header = app.batch.query_one(JobHeader)
        header.show(view, "in → o")
        await pilot.pause()
        bar = header.query_one(Bar)
        drawn = bar.render_lines(bar.region.reset_offset)[0].text
        assert "━" * (bar.size.width // 2) not in drawn
        assert drawn.strip().startswith("━━")
