"""The commands that fit what was typed after a slash, or what is wrong with it."""

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from app.chat.slash import Candidate

_MOST = 8


class SlashMenu(Static):
    """Above the prompt; hidden when there is nothing to say. ``move`` marks one of what it offers,
    and shows those around it."""

    DEFAULT_CSS = """
    SlashMenu { height: auto; padding: 0 2; display: none; background: $panel; }
    SlashMenu.-shown { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._commands: Sequence[Candidate] = ()
        self._top = 0
        self.marked: int | None = None  # the number of one, once one has moved

    def offer(self, commands: Sequence[Candidate]) -> None:
        self._commands, self._top, self.marked = commands, 0, None
        self.set_class(bool(commands), "-shown")
        self._say()

    def move(self, step: int) -> bool:
        """Mark the one above or below, at the ends the one at the other end; False when nothing is
        offered."""
        count = len(self._commands) if self.has_class("-shown") else 0
        if not count:
            return False
        start = self.marked if self.marked is not None else (-1 if step > 0 else 0)
        self.marked = (start + step) % count
        self._top = min(max(self._top, self.marked - _MOST + 1), self.marked)
        self._say()
        return True

    def take(self) -> str | None:
        """The text of the marked one, for the prompt; None when none is marked."""
        return None if self.marked is None else self._commands[self.marked].text

    def _say(self) -> None:
        shown = self._commands[self._top : self._top + _MOST]
        width = max((len(one.shown) for one in self._commands), default=0)
        lines = []
        for number, one in enumerate(shown, self._top):
            mark, style = ("▸ ", "bold reverse") if number == self.marked else ("  ", "bold")
            name = (one.shown.ljust(width), style)
            lines.append(Content.assemble(mark, name, "  ", (one.about, "$text-muted")))
        if len(self._commands) > _MOST:
            last = self._top + len(shown)
            lines.append(Content(f"  {self._top + 1}-{last} of {len(self._commands)}: ↑ ↓ move"))
        self.update(Content("\n").join(lines))

    def error(self, text: str) -> None:
        self._commands, self.marked = (), None
        self.set_class(True, "-shown")
        self.update(Content.assemble(("! ", "bold $text-error"), (text, "$text-error")))

    def hide(self) -> None:
        self._commands, self.marked = (), None
        self.set_class(False, "-shown")
