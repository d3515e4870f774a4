"""Choose a text file that goes with the next message, and see what it takes of the context."""

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.chat.attachments import Attached, read_attachment, with_attachments
from app.chat.store.records import Attachment
from app.tui.app import services_of
from app.tui.widgets.path_input import PathInput
from runtimes.errors import IngotError

_PAUSE_S = 0.2  # of typing, before a file is read


class AttachScreen(ModalScreen[Attachment | None]):
    """Ends with the file, None when it was left."""

    HELP = """
    Type the path of a text file, or pick it below: tab completes, down goes to the list. How much
    of the context the file takes is shown before you attach it.
    """
    CSS_PATH = "attach.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="attach.leave")
    ]

    def __init__(self, path: str = "") -> None:
        super().__init__(classes="panel")
        self._path = path

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Attach a text file"
            box.border_subtitle = "enter attaches · tab completes · esc back"
            yield PathInput(self._path, placeholder="notes.txt, ~/code/main.py ...")
            yield Static(id="about", markup=False)

    def on_mount(self) -> None:
        self.query_one(PathInput).focus_line()

    @on(PathInput.Changed)
    def _typed(self, event: PathInput.Changed) -> None:
        self._tell("")
        if event.text and self.query_one(PathInput).path.is_file():
            self.set_timer(_PAUSE_S, lambda: self._look(event.text))

    def _look(self, text: str) -> None:
        if self.query_one(PathInput).text == text:
            self._read(text, take=False)

    @on(PathInput.Chosen)
    def _chosen(self, event: PathInput.Chosen) -> None:
        self._read(event.text, take=True)

    @work(thread=True, exclusive=True, exit_on_error=False, group="attach")
    def _read(self, text: str, *, take: bool) -> None:
        """Read the file; ``take`` it, or say how large it is."""
        try:
            attached = read_attachment(text)
            told = "" if take else self._describe(attached)
        except IngotError as error:
            self.app.call_later(self._tell, str(error), error=True)
            return
        if take:
            self.app.call_later(self._take, attached)
        else:
            self.app.call_later(self._tell, told)

    def _describe(self, attached: Attached) -> str:
        one = attached.attachment
        told = f"{len(one.text):,} characters"
        engine = services_of(self).host.engine
        if engine is not None:
            tokens = len(engine.encode(with_attachments("", [one])))
            told += f" · {tokens:,} tokens of a context of {engine.context:,}"
            if tokens >= engine.context:
                told += ": more than fits"
        return f"{told}\n{attached.warning}" if attached.warning else told

    def _take(self, attached: Attached) -> None:
        if not self.is_current:
            return  # left while the file was read
        if attached.warning:
            self.app.notify(attached.warning, severity="warning", markup=False)
        self.dismiss(attached.attachment)

    def _tell(self, text: str, *, error: bool = False) -> None:
        if self.is_attached:
            about = self.query_one("#about", Static)
            about.set_class(error, "error")
            about.update(text)
