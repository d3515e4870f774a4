"""One row of a job, whole: what was asked, what was answered, and what that took."""

import asyncio
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from app.batch.watch.job import Job
from app.batch.watch.preview import ShownRow, open_row


class BatchRowScreen(ModalScreen[None]):
    """Reads the row when it is shown."""

    HELP = """
    One row: its prompt, its answer or error, and its figures. Up and down scroll.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss", "Back", id="batch.row_back"),
        Binding("ctrl+y", "copy", "Copy the answer", id="batch.row_copy"),
    ]
    DEFAULT_CSS = """
    BatchRowScreen {
        & > .box { width: 96%; height: 90%; max-height: 90%; }
        & > .box > VerticalScroll { height: 1fr; max-height: 100%; }
        & .part { text-style: bold; margin-top: 1; }
    }
    """

    def __init__(self, job: Job, index: int) -> None:
        super().__init__(classes="panel")
        self._job, self._index = job, index
        self.row: ShownRow | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = f"Row {self._index:,}"
            with VerticalScroll():
                yield Static("reading ...", id="said", markup=False)
                yield Static("Prompt", classes="part")
                yield Static(id="prompt", markup=False)
                yield Static("Answer", classes="part", id="answer-title")
                yield Static(id="answer", markup=False)
            yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self._read()

    @work(exit_on_error=False, group="row")
    async def _read(self) -> None:
        self.show(await asyncio.to_thread(open_row, self._job, self._index))

    def show(self, row: ShownRow) -> None:
        self.row = row
        box = self.query_one(".box")
        box.border_title = f"Row {row.index:,} · {row.id} · {row.where}"
        said = [line for line in (row.figures, row.note) if line]
        if row.error:
            said.insert(0, f"✗ {row.error}")
        self.query_one("#said", Static).update("\n".join(said) or "not answered yet")
        self.query_one("#prompt", Static).update(row.prompt)
        text = "\n---\n".join(row.answers) or row.partial
        self.query_one("#answer", Static).update(text)
        title = "Answer" if row.answers else ("Begun answer" if row.partial else "No answer")
        self.query_one("#answer-title", Static).update(title)

    def action_copy(self) -> None:
        if self.row is not None and self.row.answers:
            self.app.copy_to_clipboard("\n".join(self.row.answers))
            self.notify("The answer is copied.")
