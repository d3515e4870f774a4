"""What waits for the answer that is being written, above the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from app.chat.session import FollowUp
from app.tui.keys import told


class QueuedMessages(Static):
    """A line each, the next one first; a click takes one back."""

    @dataclass
    class Wanted(Message):
        """One is to be taken back."""

        at: int

    def __init__(self) -> None:
        super().__init__(markup=False)

    def show(self, waiting: Sequence[FollowUp]) -> None:
        hint = told(self, "[chat.older ↑] takes it back, [chat.stop esc] all")
        lines = []
        for at, one in enumerate(waiting, 1):
            text = " ".join(one.text.split())
            files = f"  + {len(one.attachments)}" if one.attachments else ""
            last = (f"  {hint}", "$text-muted") if at == len(waiting) else ""
            label = (f"queued {at}  ", "$text-warning")
            lines.append(Content.assemble(label, text, files, last))
        self.update(Content("\n").join(lines))
        self.display = bool(waiting)

    def on_click(self, event: events.Click) -> None:
        at = event.y + self.scroll_offset.y
        if at >= 0:
            self.post_message(self.Wanted(at))
