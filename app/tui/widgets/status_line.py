"""The line under the prompt: speeds, context, model."""

import time

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from app.chat.figures import StatusFigures
from app.figures import duration
from app.tui.widgets.gauge import bar, history

_PAINT_S = 0.25


class StatusLine(Widget):
    """``show`` may be called as often as one likes; it paints four times a second at most."""

    HELP = """
    Decode speed of the running answer (tokens per second over the last seconds, as a figure and as
    bars), time to its first token, prefill speed, and how much of the context is used.
    What does not fit is left out.
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


def status_text(figures: StatusFigures, width: int) -> str:
    """One line of at most ``width`` cells: what matters least is left out first."""
    speed = rate(figures.decode_tps)
    parts: list[tuple[int, str]] = [
        (0, figures.note),
        (1, speed),
        (
            7,
            history(figures.history, min(10, len(figures.history))) if any(figures.history) else "",
        ),
        (4, f"first {duration(figures.ttft_s)}" if figures.ttft_s is not None else ""),
        (5, f"prefill {figures.prefill_tps:,.0f}/s" if figures.prefill_tps else ""),
        (2, context_text(figures)),
        (3, figures.model),
        (6, figures.details),
    ]
    there = [part for part in parts if part[1]]
    while there:
        line = "  ".join(text for _, text in there)
        if cell_len(line) <= width:
            return line
        if len(there) == 1:
            return line[: max(0, width - 1)] + "…"
        there.remove(max(there, key=lambda part: part[0]))
    return ""


def context_text(figures: StatusFigures) -> str:
    """Tokens used of the context: a gauge, a share and the numbers."""
    if figures.used is None or not figures.context:
        return ""
    share = min(1.0, figures.used / figures.context)
    about = "≈" if figures.estimated else ""
    numbers = f"{about}{figures.used:,}/{figures.context:,} {figures.used / figures.context:.0%}"
    return f"▕{bar(share, 4)}▏ {numbers}"


def rate(tps: float | None) -> str:
    """Tokens per second; empty where they are not known."""
    if tps is None:
        return ""
    return f"{tps:,.{1 if tps < 100 else 0}f} tok/s"
