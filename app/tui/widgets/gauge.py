"""Bars and short histories in characters: lengths and shapes tell, not colours."""

from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar(share: float, width: int) -> str:
    """``width`` characters, filled to ``share`` (0 to 1)."""
    full, rest = divmod(round(min(max(share, 0.0), 1.0) * width * 8), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def gauge(share: float | None, width: int) -> str:
    """A bar between brackets, ``width`` characters in all; None is empty."""
    return f"[{bar(share or 0.0, max(width - 2, 1))}]"


def history(values: Sequence[float], width: int, top: float | None = None) -> str:
    """The last ``width`` values, oldest first; ``top`` is full height (None: the largest)."""
    last = list(values)[-width:]
    most = top if top is not None else max(last, default=0.0)
    if most <= 0:
        return (_HEIGHTS[0] * len(last)).rjust(width)
    marks = (min(int(max(v, 0.0) / most * len(_HEIGHTS)), len(_HEIGHTS) - 1) for v in last)
    return "".join(_HEIGHTS[mark] for mark in marks).rjust(width)


def line(share: float, width: int) -> tuple[str, str]:
    """A line of ``width`` characters: the part that is filled, and the rest."""
    full = round(min(max(share, 0.0), 1.0) * width)
    full = max(full, 1) if share > 0 else full
    return "━" * full, "─" * (width - full)
