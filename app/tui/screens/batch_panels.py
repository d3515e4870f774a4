"""Panels over the batch screen: files, one row whole, jobs, presets, and leaving while a job runs;
and one row as text, also for the pane beside the table."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, DirectoryTree, Input, Static
from textual.worker import Worker

from app.batch.journal.journal import journal_path
from app.batch.watch.form import JobForm, JobPreset, forget, presets, summary
from app.batch.watch.job import WatchedJob
from app.batch.watch.preview import ShownRow, open_row
from app.batch.watch.process import Foreign
from app.batch.watch.records import KnownJob, known_jobs
from app.batch.watch.rows import RowState
from app.here import at_home, here, whole
from app.tui.keys import bind, told
from app.tui.screens.dialogs import ConfirmScreen, Panel, bind_first
from app.tui.textual_patches import Plain, background, latest
from app.tui.widgets.form import path_field
from app.tui.widgets.table import Table, TableColumn

_ROLES = {"user": "$text-primary", "assistant": "$text-success", "not finished": "$text-warning"}


_SETTLE_S = 0.1  # so long the cursor may move on before a row is read


class RowPane(VerticalScroll):
    """``follow`` shows a row, and again when something new is known of it."""

    def __init__(self) -> None:
        super().__init__(id="job-row", classes="pane", can_focus=False)
        self.border_title = "Row"
        self.row: ShownRow | None = None
        self._text = Static(id="row-text")
        self._wanted: tuple[WatchedJob, int, RowState] | None = None
        self._reader: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        yield self._text

    def follow(self, job: WatchedJob, index: int | None) -> None:
        """Show this row once the cursor stays there."""
        wanted = None if index is None else (job, index, job.state(index))
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if wanted is None:
            self.row, self.border_title, self.border_subtitle = None, "Row", ""
            self._text.update("")
        elif self._reader is None or self._reader.is_finished:
            self._reader = self._read()

    @background
    async def _read(self) -> None:
        """One at a time: a row late in a large input takes a while."""
        shown = None
        await asyncio.sleep(_SETTLE_S)
        while (wanted := self._wanted) is not None and wanted != shown:
            row = await asyncio.to_thread(open_row, *wanted[:2])
            shown = wanted
            _show_row(row, wanted[2], self, self._text)
            if self.row is None or self.row.index != row.index:
                self.scroll_home(animate=False)
            self.row = row
            await asyncio.sleep(_SETTLE_S)


def _show_row(row: ShownRow, state: RowState, box: Widget, text: Static) -> None:
    """A row as text: its turns, then its error, then its figures."""
    box.border_title = Content(f"Row {row.index:,} · {row.id}")
    box.border_subtitle = Content(row.where)
    parts = [_turn(role, said) for role, said in row.history]
    for turn, answer in zip_longest(row.turns, row.answers):
        pair = (("user", turn), ("assistant", answer))
        parts += [_turn(role, said) for role, said in pair if said is not None]
    if row.partial:
        parts.append(_turn("not finished", row.partial))
    if row.error:
        parts.append(Content.styled(f"✗ {row.error}", "$text-error"))
    elif not row.answers and state is RowState.RUNNING:
        parts.append(Content.styled("it is being answered", "$text-primary"))
    elif not row.answers:
        parts.append(Content.styled("not answered yet", "$text-muted"))
    parts += [Content.styled(said, "$text-muted") for said in (row.figures, row.note) if said]
    text.update(Content("\n\n").join(parts))


def _turn(role: str, text: str) -> Content:
    return Content.assemble((role, f"bold {_ROLES.get(role, '$text-muted')}"), "\n", text)


_JOURNAL = journal_path(Path("x")).name[1:]


def short(path: Path) -> str:
    """As one would type it here."""
    folder = here()
    return os.path.relpath(path, folder) if path.is_relative_to(folder) else str(path)


class _Tree(DirectoryTree):
    def filter_paths(self, paths: Iterable[Path]) -> Iterable[Path]:
        """Without what is hidden, and without the journals of jobs."""
        return [p for p in paths if not p.name.startswith(".") and not p.name.endswith(_JOURNAL)]


class BatchFilesScreen(Panel[Path]):
    """A browser for what a job reads: ends with a file or folder, None when it was left."""

    HELP = """
    Enter takes a file and opens a folder; **[batch.files_take ctrl+s]** takes a folder, whose texts
    are a prompt each; **[batch.files_up backspace]** goes one folder up.
    """
    BINDINGS = [
        bind("backspace", "batch.files_up", "Folder above", action="up"),
        bind("ctrl+s", "batch.files_take", "Take the folder", action="take"),
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__("Prompts")
        self._folder = folder

    def contents(self) -> ComposeResult:
        yield _Tree(self._folder)

    @on(DirectoryTree.FileSelected)
    def _file(self, event: DirectoryTree.FileSelected) -> None:
        self.dismiss(event.path)

    def action_up(self) -> None:
        tree = self.query_one(_Tree)
        tree.path = whole(Path(tree.path)).parent

    def action_take(self) -> None:
        """End with the folder under the cursor."""
        node = self.query_one(_Tree).cursor_node
        if node is not None and node.data is not None:
            path = node.data.path
            self.dismiss(path if path.is_dir() else path.parent)


class BatchRowScreen(Panel[None]):
    """One row of a job, whole: what was asked, what was answered, and what that took."""

    HELP = """
    One row: its prompt, its answer or error, and its figures. Up and down scroll.
    """
    BINDINGS = [
        bind("enter", "batch.row_back", "Back", action="leave", show=False),
        bind("ctrl+y", "batch.row_copy", "Copy the answer", action="copy"),
    ]

    def __init__(self, job: WatchedJob, index: int) -> None:
        super().__init__(f"Row {index:,}")
        self._job, self._index = job, index
        self.row: ShownRow | None = None

    def contents(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="row-whole")

    @background
    async def on_mount(self) -> None:
        row = await asyncio.to_thread(open_row, self._job, self._index)
        box, text = self.query_one(".box"), self.query_one("#row-whole", Static)
        _show_row(row, self._job.state(self._index), box, text)
        self.row = row

    def action_copy(self) -> None:
        if self.row is not None and self.row.answers:
            self.app.copy_to_clipboard("\n".join(self.row.answers))
            self.notify("The answer is copied.")


class BatchResumeScreen(ConfirmScreen):
    """Whether to run a command that came with a journal."""

    HEADING = "This job was not started from here"
    AUTO_FOCUS = "#no"  # not what scrolls

    def __init__(self, command: Foreign) -> None:
        super().__init__("Its journal says to go on with this command. Run it?", "Run it")
        self._command = command

    def contents(self) -> ComposeResult:
        question, *answers = super().contents()
        yield question
        with VerticalScroll(id="foreign"):
            yield Plain(self._command.shown)
        yield from answers


class BatchLeaveScreen(ConfirmScreen):
    """A question about a job that runs when the app is left. Ends with whether to leave; ``pause``
    is called for leaving with the job told to end. The cursor starts on letting it run, which loses
    nothing."""

    BINDINGS = [
        bind("r", "batch.leave_run", "Let it run", action="choose('run')"),
        bind("p", "batch.leave_pause", "Pause it", action="choose('pause')"),
        bind("up", "batch.leave_up", action="app.focus_previous", show=False),
        bind("down", "batch.leave_down", action="app.focus_next", show=False),
    ]

    HEADING = "Leave"

    def __init__(self, output: str, pause: Callable[[], Any]) -> None:
        super().__init__("", "")
        self._output, self._pause = output, pause

    def contents(self) -> ComposeResult:
        yield Plain(
            f"A batch job runs: {self._output}\n\n"
            "It can continue without this app: ctrl+o on the batch screen finds it again.",
        )
        yield Button("Let it run, and leave (r)", id="run", variant="primary", compact=True)
        yield Button("Finish the running rows, then end it; leave (p)", id="pause", compact=True)
        yield Button("Stay (esc)", id="stay", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_choose(event.button.id or "stay")

    def can(self, action: str) -> bool:
        """There is no yes here."""
        return action != "dismiss"

    def action_choose(self, what: str) -> None:
        if what == "pause":
            self._pause()
        self.dismiss(what != "stay")


# Which job to look at: those that run on this machine, and those of before.

_LOOKS = {"running": "active", "finished": "good", "killed": "bad", "stopped": "wait"}


class JobTable(Table[KnownJob]):
    """The state, how far it is, and when something happened last."""

    def __init__(self) -> None:
        super().__init__(
            (
                TableColumn("state", _state, 9),
                TableColumn("output", lambda job: end_of(short(job.output), self.room)),
                TableColumn("done", lambda job: _figure(job.done), 10, True),
                TableColumn("rows", lambda job: (_figure(job.rows), "muted"), 10, True),
                TableColumn("", _share, 4, True),
                TableColumn("when", lambda job: (ago(job.at), "muted"), 10, True),
            ),
            key=lambda job: job.output,
            id="jobs-list",
        )


def _state(job: KnownJob) -> tuple[str, str]:
    return "yours" if job.own else job.state, _LOOKS.get(job.state, "muted")


def _share(job: KnownJob) -> str:
    return f"{100 * job.done // job.rows}%" if job.rows and job.done is not None else ""


class BatchJobsScreen(Panel[Path]):
    """Jobs that run now, those of before, and any other by the path of its output. Ends with the
    output of a job, None when it was left."""

    HELP = """
    Jobs of `ingot batch` on this machine, also those started in another terminal; `yours` were
    started in the app and run. Enter, or a second click, follows one. A job that was started
    elsewhere can be watched, and resumed once it has ended.
    """
    BINDINGS = [
        bind_first("ctrl+r", "batch.jobs_again", "Look again", action="again"),
    ]

    HEADING = "Jobs"

    def __init__(self) -> None:
        super().__init__()
        self.found: list[KnownJob] = []

    def contents(self) -> ComposeResult:
        yield Plain("looking ...", id="jobs-said", classes="hint")
        yield JobTable()
        yield path_field(
            "jobs-output", "Other", "the output of a job that is not listed", suffix=""
        )

    def on_mount(self) -> None:
        self.action_again()

    @latest
    async def action_again(self) -> None:
        self.found = await asyncio.to_thread(known_jobs)
        table, said = self.query_one(JobTable), self.query_one("#jobs-said", Static)
        table.styles.height = min(len(self.found) + 1, 16)
        table.show(self.found)
        said.display = not self.found
        said.update("No job is known here; type the path of an output.")
        (table if self.found else self.query_one("#jobs-output")).focus()

    @on(Table.Selected)
    def _picked(self) -> None:
        if job := self.query_one(JobTable).record:
            self.dismiss(job.output)

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(at_home(event.value.strip()))


def end_of(text: str, wide: int) -> str:
    """The end of a path tells more than its beginning."""
    return text if len(text) <= wide else "…" + text[1 - wide :]


def ago(then: float) -> str:
    """Say how long ago a time was."""
    seconds = time.time() - then
    for span, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= span:
            return f"{seconds // span:.0f} {unit} ago"
    return "just now"


def _figure(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


# A form to begin with: empty, saved under a name, or that of an earlier job.


_NAME, _MODEL = 20, 18


class PresetTable(Table[JobPreset]):
    """Saved ones have a star."""

    def __init__(self) -> None:
        super().__init__(
            (
                TableColumn("", lambda p: ("★" if _saved(p) else " ", "active"), 1),
                TableColumn("like", lambda p: end_of(p.name, _NAME), _NAME),
                TableColumn("model", lambda p: (end_of(p.form.model, _MODEL), "muted"), _MODEL),
                TableColumn("when", lambda p: (ago(p.at) if p.at else "", "muted"), 10, True),
                TableColumn("settings", lambda p: (summary(p.form), "muted")),
            ),
            key=lambda preset: (preset.name, preset.at),
            id="presets",
        )


class BatchPresetsScreen(Panel[JobForm]):
    """Ends with a form, None when it was left."""

    HEADING = "Like an earlier job"
    HELP = """
    Enter takes the settings of an earlier job, or those that were saved under a name (★). An input
    that the form has already stays, with its output. Delete forgets a saved one.
    """
    BINDINGS = [
        bind("delete,ctrl+d", "batch.presets_forget", "Forget", action="forget"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._table = PresetTable()
        self.found: list[JobPreset] = []

    def contents(self) -> ComposeResult:
        yield Static("looking ...", id="presets-said", classes="hint")
        yield self._table

    @latest
    async def on_mount(self) -> None:
        found = await asyncio.to_thread(presets, here())
        self.found = [JobPreset("an empty form", JobForm()), *found]
        table = self._table
        table.styles.height = min(len(self.found) + 1, 16)
        table.show(self.found)
        table.focus()
        said = told(self, "[batch.save F9] in the form saves its settings under a name.")
        self.query_one("#presets-said", Static).update(said)

    @on(Table.Selected)
    def _picked(self) -> None:
        if chosen := self._table.record:
            self.dismiss(chosen.form)

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self.refresh_bindings()

    def can(self, action: str) -> bool:
        chosen = self._table.record
        return action != "forget" or (chosen is not None and _saved(chosen))

    @background
    async def action_forget(self) -> None:
        chosen = self._table.record
        if chosen is None:
            return
        with self.errors_told():
            await asyncio.to_thread(forget, chosen.name)
        self.found = [one for one in self.found if one is not chosen]
        self._table.show(self.found)


def _saved(preset: JobPreset) -> bool:
    return preset.at is None and bool(preset.form.model)
