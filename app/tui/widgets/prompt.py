"""Where one types: enter sends, ctrl+j is a new line, a paste of many lines stays text."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from app.tui.widgets.prompt_history import PromptHistory

_NEW_LINE = frozenset({"ctrl+j", "shift+enter", "alt+enter"})


class Prompt(TextArea):
    """Grows to ten lines. Earlier prompts with up and down at its first and last line."""

    HELP = """
    Write a message. **enter** sends it, **ctrl+j** begins a new line (also shift+enter and
    alt+enter where the terminal tells them apart). Pasted lines are not sent. **up** and **down**
    at the first and last line walk through earlier prompts. A **/** at the beginning offers
    commands, **tab** completes them.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="chat.send", show=False),
        Binding(
            "ctrl+j,shift+enter,alt+enter", "new_line", "New line", id="chat.newline", show=False
        ),
        Binding("up", "older", "Earlier prompt", id="chat.older", show=False),
        Binding("down", "newer", "Later prompt", id="chat.newer", show=False),
        Binding("ctrl+up", "leave", "Select a message", id="chat.select", show=False),
        Binding("tab", "complete", "Complete a command", id="chat.complete", show=False),
    ]

    class Sent(Message):
        """Enter was pressed on a text that is not blank."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Leave(Message):
        """Go up to the messages."""

    class Detach(Message):
        """Backspace in an empty prompt."""

    class Complete(Message):
        """Complete what is there."""

    def __init__(self) -> None:
        super().__init__(
            soft_wrap=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder="Write a message; / for commands, F1 for help",
        )
        self.earlier = PromptHistory()

    async def _on_key(self, event: events.Key) -> None:
        """Enter and its like are bindings here, not text; Textual calls TextArea's own next."""
        if event.key == "enter" or event.key in _NEW_LINE:
            event.prevent_default()
        elif event.key == "backspace" and not self.text:
            self.post_message(self.Detach())

    def action_send(self) -> None:
        """Hand the text on; whoever takes it clears the prompt."""
        if self.text.strip():
            self.post_message(self.Sent(self.text))

    def action_new_line(self) -> None:
        """Insert a line end."""
        self._replace_via_keyboard("\n", *self.selection)

    def action_older(self) -> None:
        """Up within the text, then to earlier prompts."""
        if self.cursor_at_first_line and self._walk(older=True):
            return
        self.action_cursor_up()

    def action_newer(self) -> None:
        """Down within the text, then to later prompts."""
        if self.cursor_at_last_line and self._walk(older=False):
            return
        self.action_cursor_down()

    def action_leave(self) -> None:
        """To the messages."""
        self.post_message(self.Leave())

    def action_complete(self) -> None:
        """A command, or on to the next widget."""
        if self.text.startswith("/"):
            self.post_message(self.Complete())
        else:
            self.screen.focus_next()

    def fill(self, text: str) -> None:
        """Replace what is there, the cursor at the end."""
        self.text = text
        self.move_cursor(self.document.end)

    def _walk(self, *, older: bool) -> bool:
        text = self.earlier.step(self.text, older)
        if text is None:
            return False
        self.fill(text)
        return True
