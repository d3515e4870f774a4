"""The batch screen with real jobs on Pebble: what every key does."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from textual.widgets import Input, Static
from textual.widgets._footer import FooterKey

from app.batch.journal.journal import journal_path
from app.batch.watch import records
from app.batch.watch.form import JobForm
from app.batch.watch.job import Phase, attach
from app.batch.watch.process import BatchCommand, foreign
from app.tui.screens.batch import BatchScreen
from app.tui.screens.batch_panels import (
    BatchFilesScreen,
    BatchJobsScreen,
    BatchLeaveScreen,
    BatchPresetsScreen,
    BatchResumeScreen,
    BatchRowScreen,
    JobTable,
    PresetTable,
)
from app.tui.screens.dialogs import AskScreen, ConfirmScreen
from app.tui.screens.models import ModelsScreen
from app.tui.widgets.batch_form import BatchForm
from app.tui.widgets.batch_job import BatchJob, BatchTable, JobHeader
from tests.app import endless, stopping
from tests.app.batch.watch.leftovers import kill_jobs
from tests.app.tui.batch_app import BatchApp
from tests.app.tui.bursts import burst
from tests.support import wait_until

ROWS = 24
soon = partial(wait_until, seconds=120)  # a job's process takes its time on a busy machine


@pytest.fixture
def app(services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchApp]:
    folder = tmp_path / "work"
    folder.mkdir()
    rows = [{"id": f"r{i}", "prompt": f"What is {i} plus {i + 1}?"} for i in range(ROWS)]
    lines = ['{"nothing": 1}', *(json.dumps(row) for row in rows)]
    (folder / "in.jsonl").write_text("".join(line + "\n" for line in lines))
    monkeypatch.chdir(folder)
    yield BatchApp(services)
    kill_jobs()


def screen_of(app: BatchApp) -> BatchScreen:
    screen = app.get_screen_stack("batch")[0]
    assert isinstance(screen, BatchScreen)
    return screen


def said(screen: BatchScreen, name: str) -> str:
    return str(screen.query_one(f"#{name}", Static).content)


def drawn(screen: BatchScreen, name: str) -> str:
    """The text of a table in a widget, with one space between its cells."""
    lines = screen.app.console.render_lines(screen.query_one(f"#{name}", Static).content)  # type: ignore[arg-type]
    return "\n".join(" ".join("".join(part.text for part in line).split()) for line in lines)


def state(screen: BatchScreen) -> str:
    return str(screen.query_one(JobHeader).border_subtitle)


def done(screen: BatchScreen) -> int:
    if screen.job is None:
        return 0
    screen.job.poll()  # what has come since the screen looked
    return screen.job.view().done


def active(screen: BatchScreen) -> bool:
    return screen.job is not None and screen.job.view().phase.active


def runs(screen: BatchScreen) -> psutil.Process | None:
    """The job's process, once there is one."""
    record = None if screen.job is None else records.record_of(screen.job.output)
    return psutil.Process(record.pid) if record and record.pid else None


async def click_key(pilot: Any, key: str) -> None:
    """Click a key in the footer, once it stands there."""

    def told() -> list[FooterKey]:
        keys = pilot.app.screen.query(FooterKey)
        return [one for one in keys if one.key == key and one.region.width]

    await soon(told)
    assert await pilot.click(told()[0])


async def choose(pilot: Any, model: Path, **values: str) -> None:
    """Type the input, and fill in the rest."""
    screen = screen_of(pilot.app)
    await soon(lambda: isinstance(screen.focused, Input))
    await pilot.press(*"in.jsonl")
    screen.query_one(BatchForm).fill(model=str(model), slots="2", **values)
    await pilot.pause()


async def test_a_job_from_the_file_to_a_rows_answer(
    app: BatchApp, gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = screen_of(app)
        await choose(pilot, Path("none.gguf"))
        form = screen.query_one(BatchForm)
        await soon(lambda: "0 ✗ the row has no" in drawn(screen, "form-rows Static"))
        assert screen.query_one("#output", Input).value == "in.out.jsonl"
        # What is wrong is told before anything is started, where it is.
        await soon(lambda: "none.gguf" in form.errors.get("model", ""))
        await pilot.press("ctrl+g")
        await soon(lambda: screen.focused is screen.query_one("#model"))
        assert screen.job is None
        form.fill(model=str(gguf_file), max_tokens="60")
        await soon(lambda: "rows 24" in drawn(screen, "form-counts Static"))
        assert "not valid 1" in drawn(screen, "form-counts Static")
        assert not form.errors

        with monkeypatch.context() as first:
            for name, value in stopping.after_rows(tmp_path / "held", 1).items():
                first.setenv(name, value)
            await pilot.press("ctrl+g")
            await soon(lambda: active(screen) and runs(screen))
        process = runs(screen)
        assert process is not None
        await soon(lambda: process.status() == psutil.STATUS_STOPPED)
        await soon(lambda: done(screen) >= 1)
        await pilot.press("p")
        job = screen.job
        assert job is not None
        await soon(lambda: job.signalled)
        process.resume()
        await soon(lambda: not active(screen))
        paused = job.view()
        assert paused.phase is Phase.PAUSED
        assert 1 <= paused.done < ROWS
        await soon(lambda: state(screen).startswith("paused"))
        await pilot.press("r")
        await soon(lambda: job.view().phase is Phase.DONE)
        counts = Counter(
            line["index"]
            for line in map(json.loads, journal_path(job.output).read_text().splitlines())
            if line.get("ok")
        )
        assert counts == Counter(range(1, ROWS + 1))
        await soon(lambda: state(screen).startswith("done"))
        assert "24 answered" in said(screen, "job-said")
        assert screen.query_one(JobHeader).border_title == "in.jsonl → in.out.jsonl"
        assert said(screen, "job-counts") == "25 of 25   1 failed  100%"

        table = screen.query_one(BatchTable)
        await soon(lambda: len(table.rows) == ROWS + 1)
        await pilot.press("home", "down", "down", "pagedown", "pageup", "up", "enter")
        await soon(lambda: isinstance(app.screen, BatchRowScreen) and app.screen.row)
        row = app.screen.row
        record = json.loads(Path("in.out.jsonl").read_text().splitlines()[row.index])
        assert row.answers == (record["response"],)
        assert row.prompt == record["prompt"]
        await pilot.press("ctrl+y", "escape")
        assert app.clipboard == record["response"]

        await pilot.press("x")
        await soon(lambda: table.rows == [0])
        await pilot.press("x", "g")
        await soon(lambda: isinstance(app.screen, AskScreen))
        await pilot.press("7", "enter")
        await soon(lambda: table.record == 7)
        await pilot.press("f")
        await soon(lambda: len(table.rows) < ROWS + 1)
        await pilot.press("f")
        await soon(lambda: len(table.rows) == ROWS + 1)
        await pilot.press("end")
        assert table.record == ROWS

        # The job is known from now on.
        await pilot.press("ctrl+o")
        await soon(lambda: isinstance(app.screen, BatchJobsScreen) and app.screen.found)
        at = [known.output for known in app.screen.found].index(job.output)
        assert app.screen.found[at].state == "finished"
        app.screen.query_one(JobTable).cursor = at
        await pilot.press("enter")
        await soon(lambda: screen.job is not job and state(screen).startswith("done"))
        # Its speeds are those that were told while it ran.
        assert screen.job is not None
        await soon(lambda: screen.job.view().speeds == job.view().speeds)
        assert any(speed.prefill for speed in job.view().speeds)
        await pilot.press("f10")
        assert screen.query_one("#new").display
        await pilot.press("f10")
        assert screen.query_one("#job").display


async def test_a_running_job_is_watched_stopped_and_left(
    app: BatchApp, endless_gguf: Path, ingot: Any
) -> None:
    out = Path("out.jsonl").absolute()
    least = str(endless.CONTEXT - 1024)  # of every answer: it takes minutes
    slow = ("--slots", "4", "--context", str(endless.CONTEXT), "--min-tokens", least)
    asked = ("batch", Path("in.jsonl").absolute(), out, "--model", endless_gguf, *slow)
    process = ingot.start(*asked, "--max-tokens", least, "--quiet")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = screen_of(app)
        await soon(lambda: journal_path(out).exists() and journal_path(out).stat().st_size)
        await pilot.press("ctrl+o")
        await soon(lambda: isinstance(app.screen, BatchJobsScreen) and app.screen.found)
        # Other jobs may run on this machine.
        at = [known.output for known in app.screen.found].index(out)
        app.screen.query_one(JobTable).cursor = at
        await pilot.press("enter")
        await soon(lambda: state(screen).startswith("running · watched"))
        assert not screen.query_one(BatchJob).check_action("do", ("pause",))
        assert not screen.interrupt()
        assert screen.leaving() is None
        process.kill()
        await soon(lambda: state(screen).startswith("killed"))
        assert "kept" in said(screen, "job-said")

        # Gone on with here, it is ours.
        await click_key(pilot, "r")
        await soon(lambda: isinstance(app.screen, BatchResumeScreen))
        await pilot.press("y")
        await soon(lambda: state(screen).startswith("running"))
        await soon(lambda: said(screen, "job-slots").startswith("Slots ■■■■ 4 · 4 decoding"))
        await soon(lambda: said(screen, "kind-running") == "running  4")
        job = screen.job
        assert job is not None
        await soon(lambda: job.counts()["running"] == 4)
        await pilot.press("ctrl+q")
        await soon(lambda: isinstance(app.screen, BatchLeaveScreen))
        await pilot.press("escape")
        await soon(lambda: app.screen is screen)
        await click_key(pilot, "s")
        await soon(lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await soon(lambda: state(screen).startswith("stopped"))

        # Left alone, it goes on; left with a pause, it ends by itself.
        await pilot.press("r")
        await soon(lambda: job.view().phase is Phase.RUNNING)
        await pilot.press("ctrl+q")
        await soon(lambda: isinstance(app.screen, BatchLeaveScreen))
        await pilot.press("r")
        await soon(lambda: not app.is_running)
    record = records.record_of(out)
    assert record is not None
    assert record.pid is not None
    os.kill(record.pid, 0)
    assert active(screen)
    job.pause()
    assert job.signalled


async def test_files_and_models_are_chosen(app: BatchApp, pebble_built: Path) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = screen_of(app)
        form = screen.query_one(BatchForm)
        await pilot.press("f8")
        await soon(lambda: isinstance(app.screen, BatchFilesScreen))
        tree = app.screen.query_one("_Tree")
        await soon(lambda: len(tree.root.children) == 1)
        await pilot.press("down", "enter")
        await soon(lambda: form.form.input == "in.jsonl")
        await pilot.press("f8")
        await soon(lambda: isinstance(app.screen, BatchFilesScreen))
        await pilot.press("backspace")
        tree = app.screen.query_one("_Tree")
        await soon(lambda: tree.cursor_node and tree.cursor_node.data.path.name != "work")
        await pilot.press("ctrl+s")
        await soon(lambda: form.form.input == str(Path.cwd().parent))
        form.fill(model=str(pebble_built))
        await pilot.press("ctrl+t")
        await soon(lambda: isinstance(app.screen, ModelsScreen))
        await soon(lambda: len(app.screen.query_one("#table").rows) >= 4)
        await pilot.press("enter")
        await soon(lambda: Path(form.form.model).name in os.listdir(pebble_built))


async def test_what_is_wrong_stands_under_its_field(app: BatchApp, gguf_file: Path) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = screen_of(app)
        form = screen.query_one(BatchForm)
        # Nothing is missing before one has tried to start.
        await choose(pilot, gguf_file, max_tokens="many", field="q", template="t.j2")
        await soon(lambda: set(form.errors) == {"max_tokens", "template"})
        form.fill(model="")
        await pilot.pause()
        await pilot.click("#start")
        await soon(lambda: screen.focused is form.query_one("#template"))
        assert list(form.errors) == ["template", "model", "max_tokens"]
        assert "“" not in form.errors["max_tokens"]
        assert form.errors["max_tokens"] == "a whole number from 1, not many"
        for name in ("model", "max_tokens", "template"):
            await pilot.press("alt+n")
            assert screen.focused is form.query_one(f"#{name}")
        # The other one of two that contradict each other is mended: neither is wrong then.
        form.fill(field="", model=str(gguf_file))
        Path("t.j2").write_text("{{ prompt }}")
        await soon(lambda: list(form.errors) == ["max_tokens"])
        await pilot.press("alt+n", "end", *["backspace"] * 4)
        await soon(lambda: not form.errors)  # it may have looked at a part of the word


async def test_letters_behind_the_key_to_the_next_error_stand_in_its_field(app: BatchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = screen_of(app)
        form = screen.query_one(BatchForm)
        form.fill(max_tokens="many")
        await soon(lambda: list(form.errors) == ["max_tokens"])
        screen.set_focus(form.query_one("#system"))
        await pilot.pause()
        await burst(pilot, *"brief", "alt+n", "ctrl+u", *"12")
        assert form.text_of("system") == "brief"
        assert form.text_of("max_tokens") == "12"


async def test_what_a_field_cannot_show_is_told_in_its_words(app: BatchApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        form = screen_of(app).query_one(BatchForm)
        form.say("--max-tokens 900 does not fit; see --maximum and --choice")
        await pilot.pause()
        told = "✗ “Max tokens” 900 does not fit; see --maximum and “Choices”"
        assert said(screen_of(app), "said") == told
        await pilot.press("9")
        assert said(screen_of(app), "said") == "", "it may be mended now"


async def test_a_form_is_filled_from_an_earlier_job_and_saved(
    app: BatchApp, gguf_file: Path
) -> None:
    command = BatchCommand(
        JobForm(
            input="in.jsonl", output="old.jsonl", model=str(gguf_file), max_tokens="7", seed="3"
        ).spec(),
        Path.cwd(),
    )
    records.JobRecord(Path("old.jsonl").absolute(), 1000.0, command).save()
    async with app.run_test(size=(120, 40)) as pilot:
        form = screen_of(app).query_one(BatchForm)
        await pilot.press("f7")
        await soon(lambda: isinstance(app.screen, BatchPresetsScreen) and app.screen.found)
        await pilot.press("down", "enter")
        await soon(lambda: form.form.max_tokens == "7")
        assert (form.form.input, form.form.output) == ("in.jsonl", "old.jsonl")
        assert form.form.seed == "3"
        await soon(lambda: "rows 24" in drawn(screen_of(app), "form-counts Static"))
        # Under a name it is for other inputs too.
        form.fill(seed="many")
        await pilot.press("f9")
        await soon(lambda: isinstance(app.screen, AskScreen))
        await pilot.press(*"short", "enter")
        await soon(lambda: list(form.errors) == ["seed"])
        form.fill(seed="5")
        await pilot.pause()
        await pilot.click("#save")
        await soon(lambda: isinstance(app.screen, AskScreen))
        await pilot.press(*"short", "enter")
        await soon(lambda: app.screen is screen_of(app))
        await app.workers.wait_for_complete([w for w in app.workers if w.name == "action_save"])
        form.fill(input="other.jsonl", max_tokens="")
        await pilot.pause()
        await pilot.click("#like")
        await soon(lambda: isinstance(app.screen, BatchPresetsScreen) and app.screen.found)
        table = app.screen.query_one(PresetTable)
        assert [one.name for one in table.rows] == ["an empty form", "short", "old.jsonl"]
        await pilot.click(PresetTable, offset=(4, 2))
        assert table.cursor == 1
        await pilot.click(PresetTable, offset=(4, 2))
        await soon(lambda: form.form.max_tokens == "7")
        assert (form.form.input, form.form.seed) == ("other.jsonl", "5")
        await pilot.press("f7")
        await soon(lambda: isinstance(app.screen, BatchPresetsScreen) and app.screen.found)
        await pilot.press("down", "delete")
        await soon(lambda: len(app.screen.found) == 2)
        await pilot.press("home", "enter")
        await soon(lambda: form.form == JobForm())


async def test_a_foreign_job_is_resumed_only_after_a_look_at_its_command(
    app: BatchApp, ingot: Any, gguf_file: Path, tmp_path: Path
) -> None:
    """As one opens somebody else's output, with its journal beside it."""
    out, victim = Path("out.jsonl").absolute(), tmp_path / "victim"
    asked = ("batch", Path("in.jsonl").absolute(), out, "--model", gguf_file, "--max-tokens", "2")
    assert ingot(*asked, "--quiet", "--report", victim).returncode == 1
    victim.write_text("precious")
    with Path("in.jsonl").open("a") as file:
        file.write('{"prompt": "one more"}\n')
    async with app.run_test(size=(80, 24)) as pilot:
        screen = screen_of(app)
        await screen.show(attach(out))
        await soon(lambda: state(screen).startswith("done"))
        for leave in ("escape", "n", "enter"):  # the cursor starts on the way back
            await pilot.press("r")
            await soon(lambda: isinstance(app.screen, BatchResumeScreen))
            shown = str(app.screen.query_one("#foreign Static", Static).content)
            assert f"--report={victim}" in shown
            assert shown.startswith("It also writes the file")
            await pilot.press(leave)
            await soon(lambda: app.screen is screen)
        assert not active(screen)
        assert victim.read_text() == "precious"
        assert len(out.read_text().splitlines()) == ROWS + 1
        await pilot.press("r")
        await soon(lambda: isinstance(app.screen, BatchResumeScreen))
        await pilot.press("y")
        await soon(lambda: len(out.read_text().splitlines()) == ROWS + 2)
        await soon(lambda: not active(screen))


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 50)])
async def test_the_answers_to_a_long_command_are_in_sight(
    app: BatchApp, tmp_path: Path, size: tuple[int, int]
) -> None:
    words = ("batch", "in", "out", "-m", "m", "--system", "long " * 1200, "--report", "x")
    async with app.run_test(size=size) as pilot:
        run = {"command": list(words), "folder": str(tmp_path)}
        app.push_screen(BatchResumeScreen(foreign(run, tmp_path / "out")))
        await soon(lambda: isinstance(app.screen, BatchResumeScreen) and app.screen.focused)
        await pilot.pause()
        for name in ("#no", "#yes"):
            button = app.screen.query_one(name)
            assert app.screen.region.contains_region(button.region)
            assert button.region.height
