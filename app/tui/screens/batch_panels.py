"""What opens over the batch screen: files, jobs, one row whole, and leaving while a job runs."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Button, DirectoryTree, Input, OptionList, Static
from textual.widgets.option_list import Option

from app.batch.journal.journal import journal_path
from app.batch.watch.job import Job
from app.batch.watch.preview import ShownRow, open_row
from app.batch.watch.records import KnownJob, known_jobs
from app.tui.screens.dialogs import ConfirmScreen, Panel
from app.tui.widgets.batch_row import conversation
from app.tui.widgets.form import path_line

_JOURNAL = journal_path(Path("x")).name[1:]
_PATH = 33  # columns


def short(path: Path) -> str:
    """As one would type it here."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)


class _Tree(DirectoryTree):
    def filter_paths(self, paths: Iterable[Path]) -> Iterable[Path]:
        """Without what is hidden, and without the journals of jobs."""
        return [p for p in paths if not p.name.startswith(".") and not p.name.endswith(_JOURNAL)]


class BatchFilesScreen(Panel[Path]):
    """A browser for what a job reads: ends with a file or folder, None when it was left."""

    HELP = """
    Enter takes a file and opens a folder; t takes a folder, whose texts are a prompt each;
    backspace goes one folder up.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="batch.files_back"),
        Binding("backspace", "up", "Folder above", id="batch.files_up"),
        Binding("t", "take", "Take the folder", id="batch.files_take"),
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
        tree.path = Path(tree.path).absolute().parent

    def action_take(self) -> None:
        """End with the folder under the cursor."""
        node = self.query_one(_Tree).cursor_node
        if node is not None and node.data is not None:
            path = node.data.path
            self.dismiss(path if path.is_dir() else path.parent)


class BatchJobsScreen(Panel[Path]):
    """Jobs that run now, those of before, and any other by the path of its output. Ends with the
    output of a job, None when it was left."""

    HELP = """
    Jobs of `ingot batch` on this machine, also those started in another terminal. Enter follows
    one. A job that was started elsewhere can be watched, and resumed once it has ended.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="batch.jobs_back"),
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
        yield Static("looking ...", id="jobs-said", markup=False)
        yield OptionList(id="jobs-list", markup=False)
        yield path_line("Output", "the OUT of another job", "jobs-output", "")

    def on_mount(self) -> None:
        self.action_again()

    @work(exit_on_error=False, exclusive=True, group="jobs")
    async def action_again(self) -> None:
        self.found = await asyncio.to_thread(self._jobs)
        now = self._clock()
        found = self.query_one(OptionList)
        found.set_options([Option(_job_line(job, now)) for job in self.found])
        said = "" if self.found else "No job is known here; type the path of an output."
        self.query_one("#jobs-said", Static).update(said)
        if self.found:
            found.highlighted = 0
        else:
            self.query_one("#jobs-output").focus()

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.found[event.option_index].output)

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(Path(event.value.strip()).expanduser())


class BatchRowScreen(Panel[None]):
    """One row of a job, whole: what was asked, what was answered, and what that took."""

    HELP = """
    One row: its prompt, its answer or error, and its figures. Up and down scroll.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss", "Back", id="batch.row_back"),
        Binding("ctrl+y", "copy", "Copy the answer", id="batch.row_copy"),
    ]

    def __init__(self, job: Job, index: int) -> None:
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


class BatchLeaveScreen(ConfirmScreen):
    """What is to become of a job that runs when the app is left. Ends with whether to leave;
    ``pause`` is called for leaving with the job told to end. The cursor starts on letting it run,
    which loses nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "choose('stay')", "Stay", id="batch.leave_stay"),
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

    def action_choose(self, what: str) -> None:
        if what == "pause":
            self._pause()
        self.dismiss(what != "stay")


def _job_line(job: KnownJob, now: float) -> str:
    """One line; the end of a path tells more than its beginning."""
    output = str(job.output)
    output = output if len(output) <= _PATH else "…" + output[1 - _PATH :]
    rows = "" if job.rows is None else f"{job.rows:,} rows"
    state = "yours" if job.own else job.state
    return f"{state:<9} {output:<{_PATH}} {rows:>14} {_ago(now - job.at):>9}"


def _ago(seconds: float) -> str:
    for span, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= span:
            return f"{seconds // span:.0f} {unit} ago"
    return "just now"
