"""What opens over the batch screen: files, one row whole, and leaving while a job runs."""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Button, DirectoryTree, Static

from app.batch.journal.journal import journal_path
from app.batch.watch.command import Foreign
from app.batch.watch.job import WatchedJob
from app.batch.watch.preview import ShownRow, open_row
from app.here import here, whole
from app.tui.screens.dialogs import ConfirmScreen, Panel
from app.tui.widgets.batch_row import conversation

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
