"""Write the chat to a file: Markdown to read, JSON to work with."""

from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import RadioButton, RadioSet, Static

from app.chat.conversation import Conversation
from app.chat.export import FORMATS, ExistsError, export, suggested_path
from app.tui.screens.confirm import ConfirmScreen
from app.tui.widgets.path_input import PathInput
from runtimes.errors import IngotError

_FORMS = tuple(FORMATS)


class _Form(RadioButton):
    """Its dot says whether it is chosen, not its colour alone."""

    BUTTON_INNER = " "

    def watch_value(self) -> None:
        self.BUTTON_INNER = "●" if self.value else " "
        super().watch_value()


class ExportScreen(ModalScreen[Path | None]):
    """Ends with the file that was written, None when it was left. ``path`` is what to begin with;
    without it, one after the chat's title in the working folder."""

    HELP = """
    The suffix sets the format: `.md` has the shown branch, `.json` every branch with all figures.
    An existing file is replaced only after asking.
    """
    CSS_PATH = "export.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="export.leave")
    ]

    def __init__(self, conversation: Conversation, path: str | None = None) -> None:
        super().__init__(classes="panel")
        self._conversation = conversation
        self._path = path or str(suggested_path(conversation))

    def compose(self) -> ComposeResult:
        chosen = Path(self._path).suffix.removeprefix(".")
        with Vertical(classes="box") as box:
            box.border_title = "Export this chat"
            box.border_subtitle = "enter writes · tab completes · esc back"
            yield PathInput(self._path)
            yield RadioSet(
                *(_Form(FORMATS[form], chosen == form, id=form) for form in _FORMS),
                id="forms",
                compact=True,
            )
            yield Static(id="about", markup=False)

    def on_mount(self) -> None:
        self.query_one(PathInput).focus_line()

    @on(RadioSet.Changed)
    def _format(self, event: RadioSet.Changed) -> None:
        line = self.query_one(PathInput)
        suffix = f".{event.pressed.id}"
        if line.text and Path(line.text).suffix != suffix:
            line.text = str(Path(line.text).with_suffix(suffix))

    @on(PathInput.Changed)
    def _typed(self, event: PathInput.Changed) -> None:
        self._tell("")
        form = Path(event.text).suffix.removeprefix(".")
        if form in _FORMS and not self.query_one(f"#{form}", RadioButton).value:
            with self.prevent(RadioSet.Changed):
                self.query_one(f"#{form}", RadioButton).value = True

    @on(PathInput.Chosen)
    def _chosen(self, event: PathInput.Chosen) -> None:
        self._write(event.text, overwrite=False)

    @work(thread=True, exclusive=True, exit_on_error=False, group="export")
    def _write(self, path: str, *, overwrite: bool) -> None:
        try:
            written = export(self._conversation, path, overwrite=overwrite)
        except ExistsError:
            self.app.call_later(self._ask, path)
        except IngotError as error:
            self.app.call_later(self._tell, str(error))
        else:
            self.app.call_later(self.dismiss, written)

    def _tell(self, text: str) -> None:
        if self.is_attached:
            self.query_one("#about", Static).update(text)

    def _ask(self, path: str) -> None:
        question = ConfirmScreen(f"{path} is there already. Replace it?", "Replace")

        def answered(yes: bool | None) -> None:
            if yes:
                self._write(path, overwrite=True)

        self.app.push_screen(question, answered)
