"""A small browser for the file, or the folder of texts, that a job reads."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DirectoryTree, Footer

from app.batch.journal.journal import journal_path

_JOURNAL = journal_path(Path("x")).name[1:]


class _Tree(DirectoryTree):
    def filter_paths(self, paths: Iterable[Path]) -> Iterable[Path]:
        """Without what is hidden, and without the journals of jobs."""
        return [
            path
            for path in paths
            if not path.name.startswith(".") and not path.name.endswith(_JOURNAL)
        ]


class BatchFilesScreen(ModalScreen[Path | None]):
    """Ends with a file or folder, None when it was left."""

    HELP = """
    Enter takes a file and opens a folder; t takes a folder, whose texts are a prompt each;
    backspace goes one folder up.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="batch.files_back"),
        Binding("backspace", "up", "Folder above", id="batch.files_up"),
        Binding("t", "take", "Take the folder", id="batch.files_take"),
    ]
    DEFAULT_CSS = """
    BatchFilesScreen {
        & > .box { height: 80%; }
        & DirectoryTree { height: 1fr; background: $surface; }
    }
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(classes="panel")
        self._folder = folder

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Prompts"
            yield _Tree(self._folder)
            yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(_Tree).focus()

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
