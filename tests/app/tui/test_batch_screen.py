"""The batch screen with real jobs on Pebble: what every key does."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from textual.screen import Screen
from textual.widgets import Input, Static
from textual.widgets._footer import FooterKey

from app.batch.journal.journal import journal_path
from app.batch.watch import records
from app.batch.watch.form import JobForm
from app.batch.watch.job import Phase
from app.batch.watch.process import BatchCommand, foreign
from app.tui.screens.batch import BatchJob, BatchScreen, BatchTable, JobHeader
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
from tests.app import endless, stopping
from tests.app.batch.watch.leftovers import kill_jobs
from tests.app.tui.batch_app import BatchApp
from tests.app.tui.bursts import burst
from tests.support import wait_until

ROWS = 12
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


def said(screen: BatchScreen, name: str) -> str:
    return str(screen.query_one(f"#{name}", Static).content)


def drawn(screen: BatchScreen, name: str) -> str:
    """The text of a table in a widget, with one space between its cells."""
    lines = screen.app.console.render_lines(screen.query_one(f"#{name}", Static).content)  # type: ignore[arg-type]
    return "\n".join(" ".join("".join(part.text for part in line).split()) for line in lines)


def state(screen: BatchScreen) -> str:
    return " ".join(str(one.border_subtitle) for one in screen.query(JobHeader))


async def process_of(screen: BatchScreen) -> psutil.Process:
    """The job's process, once there is one."""

    def pid() -> int | None:
        record = None if screen.job is None else records.record_of(screen.job.output)
        return record.pid if record else None

    await soon(pid)
    return psutil.Process(pid())


async def at(app: BatchApp, panel: type[Screen[Any]]) -> Any:
    """The panel over the batch screen, with what it has found."""
    await soon(lambda: isinstance(app.screen, panel) and getattr(app.screen, "found", True))
    return app.screen


async def follow(pilot: Any, output: Path) -> None:
    """Choose a job of the list; others may run on this machine."""
    await pilot.press("ctrl+o")
    jobs = await at(pilot.app, BatchJobsScreen)
    jobs.query_one(JobTable).cursor = [known.output for known in jobs.found].index(output)
    await pilot.press("enter")


async def click_key(pilot: Any, key: str) -> None:
    """Click a key in the footer, once it stands there."""

    def told() -> list[FooterKey]:
        keys = pilot.app.screen.query(FooterKey)
        return [one for one in keys if one.key == key and one.region.width]

    await soon(told)
    assert await pilot.click(told()[0])


async def test_a_job_from_the_file_to_a_rows_answer(
    app: BatchApp, gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen, form = app.batch, app.batch.query_one(BatchForm)
        await soon(lambda: isinstance(screen.focused, Input))
        await pilot.press(*"in.jsonl")
        form.fill(model="none.gguf", slots="2", max_tokens="16")
        await soon(lambda: "0 ✗ the row has no" in drawn(screen, "form-rows Static"))
        assert screen.query_one("#output", Input).value == "in.out.jsonl"
        # What is wrong is told before anything is started, where it is.
        await soon(lambda: "none.gguf" in form.errors.get("model", ""))
        await pilot.press("ctrl+g")
        await soon(lambda: screen.focused is screen.query_one("#model"))
        assert screen.job is None
        form.fill(model=str(gguf_file))
        await soon(lambda: "rows 12" in drawn(screen, "form-counts Static"))
        assert "not valid 1" in drawn(screen, "form-counts Static")

        with monkeypatch.context() as first:
            for name, value in stopping.after_rows(tmp_path / "held", 1).items():
                first.setenv(name, value)
            await pilot.press("ctrl+g")
            process = await process_of(screen)
        job = screen.job
        assert job is not None
        await soon(lambda: process.status() == psutil.STATUS_STOPPED)
        await pilot.press("p")
        await soon(lambda: job.signalled)
        process.resume()
        await soon(lambda: state(screen).startswith("paused"))
        assert 1 <= job.view().done < ROWS
        await pilot.press("r")
        await soon(lambda: state(screen).startswith("done"))
        assert "12 answered" in said(screen, "job-said")
        assert screen.query_one(JobHeader).border_title == "in.jsonl → in.out.jsonl"
        assert said(screen, "job-counts") == "13 of 13   1 failed  100%"

        table = screen.query_one(BatchTable)
        await soon(lambda: len(table.rows) == ROWS + 1)
        await pilot.press("home", "down", "down", "enter")
        panel = await at(app, BatchRowScreen)
        await soon(lambda: panel.row)
        written = json.loads(Path("in.out.jsonl").read_text().splitlines()[panel.row.index])
        assert (panel.row.prompt, panel.row.answers) == (written["prompt"], (written["response"],))
        await pilot.press("ctrl+y", "escape")
        assert app.clipboard == written["response"]
        await pilot.press("g")
        await at(app, AskScreen)
        await pilot.press("7", "enter")
        await soon(lambda: table.record == 7)

        # The job is known from now on.
        await follow(pilot, job.output)
        await soon(lambda: screen.job is not job and state(screen).startswith("done"))
        await pilot.press("f10")
        assert screen.query_one("#new").display


async def test_a_foreign_job_is_watched_resumed_after_a_look_stopped_and_left(
    app: BatchApp, endless_gguf: Path, ingot: Any, tmp_path: Path
) -> None:
    """As one opens somebody else's output, with its journal beside it."""
    out, victim = Path("out.jsonl").absolute(), tmp_path / "victim"
    least = str(endless.CONTEXT - 1024)  # of every answer: it takes minutes
    slow = ("--slots", "4", "--context", str(endless.CONTEXT), "--min-tokens", least)
    asked = ("batch", Path("in.jsonl").absolute(), out, "--model", endless_gguf, *slow)
    process = ingot.start(*asked, "--max-tokens", least, "--quiet", "--report", victim)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = app.batch
        await soon(lambda: journal_path(out).exists() and journal_path(out).stat().st_size)
        await follow(pilot, out)
        await soon(lambda: state(screen).startswith("running · watched"))
        assert not screen.query_one(BatchJob).check_action("do", ("pause",))
        assert not screen.interrupt()
        assert screen.leaving() is None
        process.kill()
        await soon(lambda: state(screen).startswith("killed"))
        assert "kept" in said(screen, "job-said")

        await click_key(pilot, "r")
        panel = await at(app, BatchResumeScreen)
        shown = str(panel.query_one("#foreign Static", Static).content)
        assert f"--report={victim}" in shown
        assert shown.startswith("It also writes the file")
        await pilot.press("enter")  # the cursor starts on the way back
        await soon(lambda: app.screen is screen)
        assert state(screen).startswith("killed")

        # Gone on with here, it is ours.
        await pilot.press("r")
        await at(app, BatchResumeScreen)
        await pilot.press("y")
        await soon(lambda: said(screen, "job-slots").startswith("Slots ■■■■ 4 · 4 decoding"))
        await soon(lambda: said(screen, "kind-running") == "running  4")
        job = screen.job
        assert job is not None
        await pilot.press("s")
        await at(app, ConfirmScreen)
        await pilot.press("y")
        await soon(lambda: state(screen).startswith("stopped"))

        # Left alone, it goes on.
        await pilot.press("r")
        await soon(lambda: job.view().phase is Phase.RUNNING)
        await pilot.press("ctrl+q")
        await at(app, BatchLeaveScreen)
        await pilot.press("r")
        await soon(lambda: not app.is_running)
    record = records.record_of(out)
    assert record is not None
    assert record.pid is not None
    os.kill(record.pid, 0)


async def test_the_form_is_filled_from_files_models_and_earlier_jobs(
    app: BatchApp, pebble_built: Path
) -> None:
    model = str(pebble_built)
    earlier = JobForm(input="in.jsonl", output="old.jsonl", model=model, max_tokens="7", seed="3")
    command = BatchCommand(earlier.spec(), Path.cwd())
    records.JobRecord(Path("old.jsonl").absolute(), 1000.0, command).save()
    async with app.run_test(size=(120, 40)) as pilot:
        form = app.batch.query_one(BatchForm)
        await pilot.press("f7")
        await at(app, BatchPresetsScreen)
        await pilot.press("down", "enter")
        await soon(lambda: form.form == earlier)
        # Under a name it is for other inputs too.
        for seed, wrong in (("many", ["seed"]), ("5", [])):
            form.fill(seed=seed)
            await pilot.press("f9")
            await at(app, AskScreen)
            await pilot.press(*"short", "enter")
            await soon(lambda: app.screen is app.batch)
            await app.workers.wait_for_complete([w for w in app.workers if w.name == "action_save"])
            assert list(form.errors) == wrong
        form.fill(input="other.jsonl", max_tokens="")
        await pilot.pause()
        await pilot.click("#like")
        table = (await at(app, BatchPresetsScreen)).query_one(PresetTable)
        assert [one.name for one in table.rows] == ["an empty form", "short", "old.jsonl"]
        await pilot.press("down", "enter")
        await soon(lambda: form.form.max_tokens == "7")
        assert (form.form.input, form.form.seed) == ("other.jsonl", "5")
        await pilot.press("f7")
        panel = await at(app, BatchPresetsScreen)
        await pilot.press("down", "delete")
        await soon(lambda: len(panel.found) == 2)
        await pilot.press("home", "enter")
        await soon(lambda: form.form == JobForm())

        for keys, taken in (
            (["down", "enter"], "in.jsonl"),
            (["backspace", "ctrl+s"], str(Path.cwd().parent)),
        ):
            await pilot.press("f8")
            tree = (await at(app, BatchFilesScreen)).query_one("_Tree")
            await soon(lambda tree=tree: len(tree.root.children) == 1)
            await pilot.press(keys[0])
            await soon(lambda tree=tree: tree.cursor_node and tree.cursor_node.data)
            await pilot.press(keys[1])
            await soon(lambda taken=taken: form.form.input == taken)
        form.fill(model=model)
        await pilot.press("ctrl+t")
        models = await at(app, ModelsScreen)
        await soon(lambda: len(models.query_one("#table").rows) >= 4)
        await pilot.press("enter")
        await soon(lambda: Path(form.form.model).name in os.listdir(pebble_built))


async def test_what_is_wrong_stands_under_its_field(app: BatchApp, gguf_file: Path) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen, form = app.batch, app.batch.query_one(BatchForm)
        # Nothing is missing before one has tried to start.
        form.fill(input="in.jsonl", max_tokens="many", field="q", template="t.j2")
        await soon(lambda: set(form.errors) == {"max_tokens", "template"})
        await pilot.pause()
        await pilot.click("#start")
        await soon(lambda: screen.focused is form.query_one("#template"))
        assert list(form.errors) == ["template", "model", "max_tokens"]
        assert form.errors["max_tokens"] == "a whole number from 1, not many"
        form.say("--max-tokens 900 does not fit; see --maximum and --choice")
        assert said(screen, "said").startswith("✗ “Max tokens” 900 does not fit")
        # The other one of two that contradict each other is mended: neither is wrong then.
        form.fill(field="", model=str(gguf_file))
        Path("t.j2").write_text("{{ prompt }}")
        await soon(lambda: list(form.errors) == ["max_tokens"])
        assert said(screen, "said") == "", "it may be mended now"
        screen.set_focus(form.query_one("#system"))
        await pilot.pause()
        await burst(pilot, *"brief", "alt+n", "ctrl+u", *"12")
        assert (form.text_of("system"), form.text_of("max_tokens")) == ("brief", "12")
        await soon(lambda: not form.errors)


async def test_the_answers_to_a_long_command_are_in_sight(app: BatchApp, tmp_path: Path) -> None:
    words = ("batch", "in", "out", "-m", "m", "--system", "long " * 1200, "--report", "x")
    async with app.run_test(size=(60, 16)):
        run = {"command": list(words), "folder": str(tmp_path)}
        app.push_screen(BatchResumeScreen(foreign(run, tmp_path / "out")))
        panel = await at(app, BatchResumeScreen)
        await soon(lambda: panel.focused)
        for name in ("#no", "#yes"):
            await soon(lambda name=name: panel.query_one(name).region.height)
            assert panel.region.contains_region(panel.query_one(name).region)
