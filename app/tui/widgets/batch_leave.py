"""What is to become of a job that runs when the app is left."""

from __future__ import annotations

from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

Leaving = Literal["stay", "run", "pause"]

_TEXT = """\
A batch job runs: {output}

It can go on without this app; F8 on the batch screen finds it again, and
`ingot batch status OUT` tells how far it is."""


class BatchLeaveScreen(ModalScreen[Leaving]):
    """Ends with the choice; the cursor starts on letting it run, which loses nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "choose('stay')", "Stay", id="batch.leave_stay"),
        Binding("r", "choose('run')", "Let it run", id="batch.leave_run"),
        Binding("p", "choose('pause')", "Pause it", id="batch.leave_pause"),
        Binding("up", "app.focus_previous", show=False, id="batch.leave_up"),
        Binding("down", "app.focus_next", show=False, id="batch.leave_down"),
    ]
    DEFAULT_CSS = """
    BatchLeaveScreen {
        & Button { width: 100%; margin-top: 1; }
    }
    """

    def __init__(self, output: str) -> None:
        super().__init__(classes="panel")
        self._output = output

    def compose(self) -> ComposeResult:
        """The question and three answers."""
        with Vertical(classes="box") as box:
            box.border_title = "Leave"
            yield Static(_TEXT.format(output=self._output), markup=False)
            yield Button("Let it run, and leave (r)", id="run", variant="primary", compact=True)
            yield Button(
                "Finish the rows in work, then end it; leave (p)", id="pause", compact=True
            )
            yield Button("Stay (esc)", id="stay", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The answer."""
        self.action_choose(event.button.id or "stay")

    def action_choose(self, what: str) -> None:
        """The answer by key."""
        self.dismiss("run" if what == "run" else "pause" if what == "pause" else "stay")
