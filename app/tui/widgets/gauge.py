"""Bars and short histories in characters: lengths and shapes tell, not colours."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def gauge(share: float | None, width: int) -> str:
    """``share`` (0 to 1) as a bar between brackets, ``width`` characters in all; None is empty."""
    inside = max(width - 2, 1)
    eighths = round(min(max(share or 0.0, 0.0), 1.0) * inside * 8)
    full, rest = divmod(eighths, 8)
    bar = "█" * full + (_EIGHTHS[rest] if rest else "")
    return f"[{bar.ljust(inside)}]"


def history(values: Sequence[float], width: int, top: float | None = None) -> str:
    """The last ``width`` values, oldest first; ``top`` is full height (None: the largest)."""
    last = list(values)[-width:]
    most = top if top is not None else max(last, default=0.0)
    if most <= 0:
        return (_HEIGHTS[0] * len(last)).rjust(width)
    marks = (min(int(max(v, 0.0) / most * len(_HEIGHTS)), len(_HEIGHTS) - 1) for v in last)
    return "".join(_HEIGHTS[mark] for mark in marks).rjust(width)
