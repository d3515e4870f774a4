"""The status line and its gauges as text, for any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from app.figures import duration

_BARS = "▁▂▃▄▅▆▇█"
_GAUGE = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class StatusFigures:
    """What the status line tells; None where there is nothing to tell.

    ``note`` comes first and is never left out ("loading pebble", "waiting for the model"). Speeds
    in tokens per second; ``history`` are decode speeds over time, oldest first.
    """

    note: str = ""
    decode_tps: float | None = None
    history: tuple[float, ...] = ()
    ttft_s: float | None = None
    prefill_tps: float | None = None
    used: int | None = None
    context: int | None = None
    estimated: bool = False
    model: str = ""
    details: str = ""


def status_text(figures: StatusFigures, width: int) -> str:
    """One line of at most ``width`` cells: what matters least is left out first."""
    speed = _speed(figures.decode_tps)
    parts: list[tuple[int, str]] = [
        (0, figures.note),
        (1, speed),
        (7, sparkline(figures.history, 10) if figures.history else ""),
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
    return f"{gauge(share, 4)} {numbers}"


def gauge(share: float, width: int) -> str:
    """A bar of ``width`` cells, filled to ``share`` (0 to 1)."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    bar = "█" * full + (_GAUGE[rest] if rest else "")
    return f"▕{bar.ljust(width)}▏"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last ``width`` values as bars, from zero to the greatest of them."""
    last = list(values)[-width:]
    top = max(last, default=0.0)
    if top <= 0:
        return ""
    return "".join(_BARS[min(7, int(value / top * 7.999))] for value in last)


def _speed(tps: float | None) -> str:
    if tps is None:
        return ""
    return f"{tps:,.{1 if tps < 100 else 0}f} tok/s"
