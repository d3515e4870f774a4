"""What opens over the batch screen: files, one row whole, and leaving while a job runs."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Button, DirectoryTree, Input, Static

from app.batch.journal.journal import journal_path
from app.batch.watch.form import JobForm, JobPreset, forget, presets, summary
from app.batch.watch.job import WatchedJob
from app.batch.watch.preview import ShownRow, open_row
from app.batch.watch.process import Foreign
from app.batch.watch.records import KnownJob, known_jobs
from app.here import at_home, here, whole
from app.tui.keys import told
from app.tui.screens.dialogs import ConfirmScreen, Panel
from app.tui.widgets.batch_row import conversation
from app.tui.widgets.form import path_field
from app.tui.widgets.table import Table, TableColumn
from runtimes.errors import IngotError

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
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("backspace", "up", "Folder above", id="batch.files_up"),
        Binding("ctrl+s", "take", "Take the folder", id="batch.files_take"),
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
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "leave", "Back", id="batch.row_back", show=False),
        Binding("ctrl+y", "copy", "Copy the answer", id="batch.row_copy"),
    ]

    def __init__(self, job: WatchedJob, index: int) -> None:
        super().__init__(f"Row {index:,}")
        self._job, self._index = job, index
        self.row: ShownRow | None = None

    def contents(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="row-whole")

    @work(exit_on_error=False, group="row")
    async def on_mount(self) -> None:
        row = await asyncio.to_thread(open_row, self._job, self._index)
        box = self.query_one(".box")
        box.border_title = Content(f"Row {row.index:,} · {row.id}")
        box.border_subtitle = Content(row.where)
        shown = conversation(row, self._job.state(self._index))
        self.query_one("#row-whole", Static).update(shown)
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
            yield Static(self._command.shown, markup=False)
        yield from answers


class BatchLeaveScreen(ConfirmScreen):
    """What is to become of a job that runs when the app is left. Ends with whether to leave;
    ``pause`` is called for leaving with the job told to end. The cursor starts on letting it run,
    which loses nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "choose('run')", "Let it run", id="batch.leave_run"),
        Binding("p", "choose('pause')", "Pause it", id="batch.leave_pause"),
        Binding("up", "app.focus_previous", show=False, id="batch.leave_up"),
        Binding("down", "app.focus_next", show=False, id="batch.leave_down"),
    ]

    HEADING = "Leave"

    def __init__(self, output: str, pause: Callable[[], Any]) -> None:
        super().__init__("", "")
        self._output, self._pause = output, pause

    def contents(self) -> ComposeResult:
        yield Static(
            f"A batch job runs: {self._output}\n\n"
            "It can continue without this app: ctrl+o on the batch screen finds it again.",
            markup=False,
        )
        yield Button("Let it run, and leave (r)", id="run", variant="primary", compact=True)
        yield Button("Finish the running rows, then end it; leave (p)", id="pause", compact=True)
        yield Button("Stay (esc)", id="stay", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_choose(event.button.id or "stay")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """There is no yes here."""
        return action != "dismiss"

    def action_choose(self, what: str) -> None:
        if what == "pause":
            self._pause()
        self.dismiss(what != "stay")


_LOOKS = {"running": "running", "finished": "done", "killed": "failed", "stopped": "waiting"}


# Which job to look at: those that run on this machine, and those of before.


class JobTable(Table[KnownJob]):
    """The state, how far it is, and when something happened last."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "job-table--running",
        "job-table--done",
        "job-table--failed",
        "job-table--waiting",
        "job-table--quiet",
    }

    def __init__(self, clock: Callable[[], float]) -> None:
        columns: tuple[TableColumn[KnownJob], ...] = (
            TableColumn("state", self._state, 9),
            TableColumn("output", lambda job: end_of(short(job.output), self.room)),
            TableColumn("done", lambda job: _figure(job.done), 10, True),
            TableColumn("rows", lambda job: self._styled(_figure(job.rows)), 10, True),
            TableColumn("", self._share, 4, True),
            TableColumn("when", lambda job: self._styled(ago(clock() - job.at)), 10, True),
        )
        super().__init__(columns, key=lambda job: job.output, id="jobs-list")

    def _state(self, job: KnownJob) -> Text:
        return self._styled("yours" if job.own else job.state, _LOOKS.get(job.state, "quiet"))

    def _share(self, job: KnownJob) -> str:
        return f"{100 * job.done // job.rows}%" if job.rows and job.done is not None else ""

    def _styled(self, text: str, how: str = "quiet") -> Text:
        return Text(text, self.get_component_rich_style(f"job-table--{how}", partial=True))


class BatchJobsScreen(Panel[Path]):
    """Jobs that run now, those of before, and any other by the path of its output. Ends with the
    output of a job, None when it was left."""

    HELP = """
    Jobs of `ingot batch` on this machine, also those started in another terminal; `yours` were
    started in the app and run. Enter, or a second click, follows one. A job that was started
    elsewhere can be watched, and resumed once it has ended.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "again", "Look again", id="batch.jobs_again", priority=True),
    ]

    def __init__(
        self,
        jobs: Callable[[], list[KnownJob]] = known_jobs,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("Jobs")
        self._jobs, self._clock = jobs, clock
        self.found: list[KnownJob] = []

    def contents(self) -> ComposeResult:
        yield Static("looking ...", id="jobs-said", classes="hint", markup=False)
        yield JobTable(self._clock)
        yield path_field(
            "jobs-output", "Other", "the output of a job that is not listed", suffix=""
        )

    def on_mount(self) -> None:
        self.action_again()

    @work(exit_on_error=False, exclusive=True, group="jobs")
    async def action_again(self) -> None:
        self.found = await asyncio.to_thread(self._jobs)
        table, said = self.query_one(JobTable), self.query_one("#jobs-said", Static)
        table.styles.height = min(len(self.found) + 1, 16)
        table.show(self.found)
        said.display = not self.found
        said.update("No job is known here; type the path of an output.")
        (table if self.found else self.query_one("#jobs-output")).focus()

    @on(Table.Selected)
    def _picked(self) -> None:
        job = self.query_one(JobTable).record
        if job is not None:
            self.dismiss(job.output)

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(at_home(event.value.strip()))


def end_of(text: str, wide: int) -> str:
    """The end of a path tells more than its beginning."""
    return text if len(text) <= wide else "…" + text[1 - wide :]


def ago(seconds: float) -> str:
    """How long ago something was."""
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

    COMPONENT_CLASSES: ClassVar[set[str]] = {"preset-table--saved", "preset-table--quiet"}

    def __init__(self, clock: Callable[[], float]) -> None:
        columns: tuple[TableColumn[JobPreset], ...] = (
            TableColumn("", lambda p: self._styled("★" if _saved(p) else " ", "saved"), 1),
            TableColumn("like", lambda p: end_of(p.name, _NAME), _NAME),
            TableColumn("model", lambda p: self._styled(end_of(p.form.model, _MODEL)), _MODEL),
            TableColumn(
                "when", lambda p: self._styled(ago(clock() - p.at) if p.at else ""), 10, True
            ),
            TableColumn("settings", lambda p: self._styled(summary(p.form))),
        )
        super().__init__(columns, key=lambda preset: (preset.name, preset.at), id="presets")

    def _styled(self, text: str, how: str = "quiet") -> Text:
        return Text(text, self.get_component_rich_style(f"preset-table--{how}", partial=True))


class BatchPresetsScreen(Panel[JobForm]):
    """Ends with a form, None when it was left."""

    HEADING = "Like an earlier job"
    HELP = """
    Enter takes the settings of an earlier job, or those that were saved under a name (★). An input
    that the form has already stays, with its output. Delete forgets a saved one.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete,ctrl+d", "forget", "Forget", id="batch.presets_forget"),
    ]

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._clock = clock
        self.found: list[JobPreset] | None = None

    def contents(self) -> ComposeResult:
        yield Static("looking ...", id="presets-said", classes="hint")
        yield PresetTable(self._clock)

    @work(exit_on_error=False, exclusive=True, group="presets")
    async def on_mount(self) -> None:
        found = await asyncio.to_thread(presets, here())
        self.found = [JobPreset("an empty form", JobForm()), *found]
        table = self.query_one(PresetTable)
        table.styles.height = min(len(self.found) + 1, 16)
        table.show(self.found)
        table.focus()
        said = told(self, "[batch.save F9] in the form saves its settings under a name.")
        self.query_one("#presets-said", Static).update(said)

    @on(Table.Selected)
    def _picked(self) -> None:
        chosen = self.query_one(PresetTable).record
        if chosen is not None:
            self.dismiss(chosen.form)

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen = self.query_one(PresetTable).record if action == "forget" else None
        return action != "forget" or (chosen is not None and _saved(chosen))

    @work(exit_on_error=False, group="presets")
    async def action_forget(self) -> None:
        chosen = self.query_one(PresetTable).record
        if chosen is None:
            return
        try:
            await asyncio.to_thread(forget, chosen.name)
        except IngotError as error:
            self.notify(str(error), severity="error", markup=False)
        self.found = [one for one in self.found or [] if one is not chosen]
        self.query_one(PresetTable).show(self.found)


def _saved(preset: JobPreset) -> bool:
    return preset.at is None and bool(preset.form.model)
