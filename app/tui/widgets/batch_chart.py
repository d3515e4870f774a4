"""How fast the job was and is: one band of blocks for prefill and one for decode.

textual-plotext would draw axes and frames, for which a terminal of 24 lines has no room beside the
table, and would be one more dependency; a label with the last and the highest value says the same.
"""

from collections.abc import Sequence
from itertools import pairwise

from textual.app import RenderResult
from textual.widget import Widget

from app.batch.watch.speeds import Speed
from app.figures import rate

_BLOCKS = " ▁▂▃▄▅▆▇█"
_LABEL = 30


class BatchChart(Widget):
    """Two bands, as high as there is room."""

    DEFAULT_CSS = """
    BatchChart {
        height: 2;
    }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._speeds: tuple[Speed, ...] = ()
        self._both = True

    def show(self, speeds: tuple[Speed, ...], *, both: bool) -> None:
        """``both``: prefill is known as well."""
        if (speeds, both) != (self._speeds, self._both):
            self._speeds, self._both = speeds, both
            self.refresh()

    def render(self) -> RenderResult:
        width, height = self.size.width, self.size.height
        bands = [("decode", [speed.decode for speed in self._speeds])]
        if self._both:
            bands.insert(0, ("prefill", [speed.prefill for speed in self._speeds]))
        lines: list[str] = []
        for name, values in bands:
            lines += band(name, values, width, max(1, height // len(bands)))
        return "\n".join(lines)


def band(name: str, values: Sequence[float], width: int, height: int) -> list[str]:
    """``height`` lines: what it is and its highest value, then the values as columns."""
    top = max(values, default=0.0)
    label = f"{name} up to {rate(top)}" if top else f"{name}: nothing yet"
    heads = [label[:_LABEL].ljust(_LABEL), *[" " * _LABEL] * (height - 1)]
    room = max(1, width - _LABEL)
    return [
        head + line
        for head, line in zip(heads, columns(resampled(values, room), top, height), strict=True)
    ]


def columns(values: Sequence[float], top: float, height: int) -> list[str]:
    """Lines from top to bottom in which each value is a column of at most ``height`` characters."""
    eighths = [round(8 * height * max(0.0, value) / top) if top > 0 else 0 for value in values]
    return [
        "".join(_BLOCKS[min(8, max(0, eighth - 8 * level))] for eighth in eighths)
        for level in range(height - 1, -1, -1)
    ]


def resampled(values: Sequence[float], most: int) -> list[float]:
    """At most so many values over the same time: means of neighbours."""
    if len(values) <= most:
        return list(values)
    edges = [i * len(values) // most for i in range(most + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
