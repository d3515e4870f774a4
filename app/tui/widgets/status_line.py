"""The line under the prompt: speeds, context, model."""

from __future__ import annotations

import time

from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from app.tui.widgets.status_text import StatusFigures, status_text

_PAINT_S = 0.25


class StatusLine(Widget):
    """``show`` may be called as often as one likes; it paints four times a second at most."""

    HELP = """
    Decode speed of the running answer (tokens per second over the last seconds, as a figure and as
    bars), time to its first token, prefill speed, and how much of the context is used.
    What does not fit is left out.
    """
    DEFAULT_CSS = """
    StatusLine { height: 1; padding: 0 1; color: $text-muted; background: $panel; }
    """
    line: reactive[str] = reactive("")

    def __init__(self) -> None:
        super().__init__()
        self._figures = StatusFigures()
        self._painted = 0.0

    def show(self, figures: StatusFigures, *, now: bool = False) -> None:
        """Paint these, at once when ``now`` or when the last time is long enough ago."""
        self._figures = figures
        at = time.monotonic()
        if now or at - self._painted >= _PAINT_S:
            self._painted = at
            self._say()

    def on_resize(self) -> None:
        self._say()

    def _say(self) -> None:
        self.line = status_text(self._figures, max(0, self.size.width - 2))

    def render(self) -> Content:
        return Content(self.line)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 1
