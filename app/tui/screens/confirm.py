"""One question with two answers."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static


class ConfirmScreen(ModalScreen[bool]):
    """Ends with whether ``question`` was answered by ``yes``. Nothing is the default: the cursor
    starts on the way back."""

    CSS_PATH = "confirm.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "dismiss(False)", "No", id="confirm.no"),
        Binding("y", "dismiss(True)", "Yes", id="confirm.yes"),
        Binding("left,right", "app.focus_next", show=False, id="confirm.other"),
    ]

    def __init__(self, question: str, yes: str) -> None:
        super().__init__()
        self._question = question
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(self._question, markup=False)
            with Horizontal(id="answers"):
                yield Button("Back (n)", id="no")
                yield Button(f"{self._yes} (y)", id="yes", variant="error")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")
