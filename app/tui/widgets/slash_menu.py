"""The commands that fit what was typed after a slash, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

_MOST = 8


class SlashMenu(Static):
    """Above the prompt; hidden when there is nothing to say."""

    DEFAULT_CSS = """
    SlashMenu { height: auto; padding: 0 2; display: none; background: $panel; }
    SlashMenu.-shown { display: block; }
    """

    def offer(self, commands: Sequence[tuple[str, str]]) -> None:
        """Pairs of a command with its arguments, and what it does."""
        self.set_class(bool(commands), "-shown")
        shown = commands[:_MOST]
        width = max((len(name) for name, _ in shown), default=0)
        lines = [
            Content.assemble((name.ljust(width), "bold"), "  ", (about, "$text-muted"))
            for name, about in shown
        ]
        if len(commands) > _MOST:
            lines.append(Content(f"and {len(commands) - _MOST} more"))
        self.update(Content("\n").join(lines))

    def error(self, text: str) -> None:
        """Say what is wrong."""
        self.set_class(True, "-shown")
        self.update(Content.assemble(("! ", "bold $text-error"), (text, "$text-error")))

    def hide(self) -> None:
        """Nothing to say."""
        self.set_class(False, "-shown")
