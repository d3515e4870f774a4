"""One line of text from the user."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input


class AskScreen(ModalScreen[str | None]):
    """Ends with the text, None when it was left. An empty text is not taken."""

    CSS_PATH = "ask.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "OK", id="ask.take", priority=True),
        Binding("escape", "dismiss", "Back", id="ask.leave"),
    ]

    def __init__(self, title: str, text: str = "", placeholder: str = "") -> None:
        super().__init__()
        self._heading, self._text, self._placeholder = title, text, placeholder

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Input(self._text, placeholder=self._placeholder, id="text", compact=True)
            yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#box").border_title = self._heading
        self.query_one("#text").focus()

    def action_take(self) -> None:
        text = self.query_one("#text", Input).value.strip()
        if text:
            self.dismiss(text)
