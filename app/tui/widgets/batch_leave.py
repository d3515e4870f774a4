"""What is to become of a job that runs when the app is left."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Button, Static

from app.tui.screens.dialogs import ConfirmScreen

_TEXT = """\
A batch job runs: {output}

It can continue without this app: ctrl+o on the batch screen finds it again."""


class BatchLeaveScreen(ConfirmScreen):
    """Ends with whether to leave; ``pause`` is called for leaving with the job told to end. The
    cursor starts on letting it run, which loses nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "choose('stay')", "Stay", id="batch.leave_stay"),
        Binding("r", "choose('run')", "Let it run", id="batch.leave_run"),
        Binding("p", "choose('pause')", "Pause it", id="batch.leave_pause"),
        Binding("up", "app.focus_previous", show=False, id="batch.leave_up"),
        Binding("down", "app.focus_next", show=False, id="batch.leave_down"),
    ]
    HEADING = "Leave"
    DEFAULT_CSS = """
    BatchLeaveScreen {
        & Button { width: 100%; margin: 1 0 0 0; }
    }
    """

    def __init__(self, output: str, pause: Callable[[], None]) -> None:
        super().__init__("", "")
        self._output, self._pause = output, pause

    def contents(self) -> ComposeResult:
        yield Static(_TEXT.format(output=self._output), markup=False)
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
