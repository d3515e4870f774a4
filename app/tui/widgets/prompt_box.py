"""The prompt in a box, with the attached files, how full the context is, and messages that wait."""

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.style import Style

from app.chat.figures import StatusFigures
from app.chat.session import FollowUp
from app.chat.store.records import Attachment
from app.tui.keys import told
from app.tui.textual_patches import Pane, Plain
from app.tui.widgets.prompt import Prompt


def line(share: float, width: int) -> tuple[str, str]:
    """A line of ``width`` characters: the part that is filled, and the rest."""
    full = round(min(max(share, 0.0), 1.0) * width)
    full = max(full, 1) if share > 0 else full
    return "━" * full, "─" * (width - full)


_NEAR, _FULL = 0.75, 0.9  # shares of the context
_GAUGE, _SHORT = 20, 10  # columns
_NARROW = 90


class PromptBox(Pane):
    """The prompt, and in its lower border what ``show_context`` is told."""

    HELP = """
    In the lower border: how much of the context is used, with what is being written (≈: counted
    after a pause). Yellow from 75% on, red from 90%.
    """

    def __init__(self, prompt: Prompt) -> None:
        super().__init__("Message")
        self._prompt = prompt
        self._files = Plain(classes="files")
        self._figures = StatusFigures()
        self.status = Content()  # what the lower border tells

    def compose(self) -> ComposeResult:
        yield self._files
        yield self._prompt

    def on_mount(self) -> None:
        self.show_files(())

    def name_it(self, title: str) -> None:
        """Name what is written in the box."""
        self.border_title = Content(title)

    def show_files(self, files: Sequence[Attachment]) -> None:
        """The attached ones; a click on a cross takes one away."""
        chips = (chip(file, number) for number, file in enumerate(files))
        self._files.say(Content("  ").join(chips))

    def show_context(self, figures: StatusFigures) -> None:
        self._figures = figures
        self._say()

    def on_resize(self) -> None:
        self._say()

    def _say(self) -> None:
        status = status_of(self._figures, self.size.width)
        if status != self.status:
            self.status = status
            self.border_subtitle = status


def chip(file: Attachment, number: int | None = None) -> Content:
    """A file and its length; with a ``number``, and a cross that takes it away."""
    length = len(file.text)
    about = f"{length:,} character{'' if length == 1 else 's'}"
    content = Content.assemble(
        (f" {file.name}", "$text on $panel"), (f" {about} ", "$text-muted on $panel")
    )
    if number is None:
        return content
    return content + clickable("✕ ", f"screen.detach({number})", "$text on $panel")


def clickable(text: str, action: str, style: str = "") -> Content:
    """``text`` that runs an action when it is clicked."""
    return Content.styled(text, style).stylize(Style.from_meta({"@click": action}))


def status_of(figures: StatusFigures, width: int) -> Content:
    """A status line: what goes on, and the tokens used of the context as a gauge, numbers and their
    share."""
    note = Content.styled(figures.note, "$text-warning") if figures.note else Content()
    if figures.used is None or not figures.context:
        return note
    share = figures.used / figures.context
    style = "$text-success"
    if share >= _NEAR:
        style = "bold $text-error" if share >= _FULL else "bold $text-warning"
    about = "≈" if figures.estimated else ""
    numbers, percent = f"{about}{figures.used:,} of {figures.context:,}", f"{share:.0%}"
    # What the numbers need is taken from the gauge: nothing else moves as they grow.
    most = 2 * len(f"{figures.context:,}") + len("≈ of 100%")
    room = (_SHORT if width < _NARROW else _GAUGE) + most - len(numbers) - len(percent)
    full, rest = line(share, room)
    gauge = Content.assemble(
        "context ",
        (full, style),
        (rest, "$border-blurred"),
        f" {numbers} · ",
        (percent, style if share >= _NEAR else ""),
    )
    return Content(" ─ ").join([note, gauge]) if figures.note else gauge


# What waits for the answer that is being written, above the prompt.


class QueuedMessages(Plain):
    """A line each, the next one first; a click takes one back."""

    def show(self, waiting: Sequence[FollowUp]) -> None:
        hint = told(self, "[chat.older ↑] takes it back, [chat.stop esc] all")
        lines = []
        for at, one in enumerate(waiting, 1):
            text = " ".join(one.text.split())
            files = f"  + {len(one.attachments)}" if one.attachments else ""
            last = (f"  {hint}", "$text-muted") if at == len(waiting) else ""
            label = (f"queued {at}  ", "$text-warning")
            lines.append(Content.assemble(label, text, files, last))
        self.say(Content("\n").join(lines))

    async def on_click(self, event: events.Click) -> None:
        await self.run_action(f"screen.unqueue({event.y + self.scroll_offset.y})")
