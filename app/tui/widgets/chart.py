"""A chart with axes: lines, areas and points in the colours of the theme.

Who shows one says what the axes are, and hands over the data as often as it likes::

    yield Chart(x=Axis(time=True, low=-300, high=0), y=Axis("tok/s"), id="speed")

    chart.show([
        Series("prefill", [(-3.0, 410.0), (-2.0, 395.0)], color="$text-secondary"),
        Series("decode", decode, kind="area"),
    ])

and of files by size and quality, one of them starred::

    yield Chart(x=Axis("GB"), y=Axis("KL", log=True), id="front")

    chart.show([Series("GGUF", points, kind="points")], marks=[Mark(3.2, 0.04, "q4_k_m")])

A value that is not a number (``math.nan``) is a gap. Series drawn later cover earlier ones; a
legend is shown for two or more. The figures at the left always have the same width. The chart fills
its place, from about 30x6 on; give it a height. It takes neither the focus nor the mouse.

It is drawn on the canvas of textual-plot. That one's own chart took twelve times as long (90 ms).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.style import Style
from textual import events
from textual.color import Color
from textual.geometry import Region
from textual_hires_canvas import Canvas

_STEPS = (1, 2, 5, 10)
Points = Sequence[tuple[float, float]]
# The axes of a chart: how far they go, which values are marked on them, and how these are told.


_DAY = 86400
# Of time, in seconds: steps that people count in.
_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, _DAY)


@dataclass(frozen=True, slots=True)
class Axis:
    """A wanted axis. ``low`` and ``high`` fix its ends; without them it fits the data, and without
    ``low`` it leaves room at both ends.

    ``time`` is in seconds, which are told as 0:30 or 5 min; below 0 they are ago, and 0 is now.
    ``log`` has the same distance between 1 and 2 as between 10 and 20; its data are above 0, and
    it fits them.
    """

    label: str = ""  # with the unit, such as "tok/s"
    low: float | None = None
    high: float | None = None
    time: bool = False
    log: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis over its data: its ends, and the values that are marked, with their labels."""

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """The place of a value on the axis, 0 to 1; what is beyond an end is at it."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return min(max((value - low) / (high - low), 0.0), 1.0)


def scale(axis: Axis, values: Sequence[float], ticks: int, *, whole: bool) -> Scale:
    """``axis`` over ``values``, with about ``ticks`` steps; ``whole`` ends at a marked value."""
    if axis.log:
        return _log_scale([value for value in values if value > 0] or [1.0], ticks)
    low = min(values, default=0.0) if axis.low is None else axis.low
    high = max(values, default=1.0) if axis.high is None else axis.high
    if high <= low:
        high = low + 1.0
    elif axis.low is None:
        margin = (high - low) * 0.06
        low, high = low - margin, high + margin
    step = _step((high - low) / max(ticks, 1), time=axis.time)
    if whole and axis.high is None:
        high = math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    marked = [number * step for number in range(first, last + 1)]
    labels = times(marked, low) if axis.time else numbers(marked)
    return Scale(low, high, tuple(marked), tuple(labels))


def _step(least: float, *, time: bool) -> float:
    """The smallest step that is at least ``least``."""
    if time and least > _TIMES[-1]:
        return _DAY * _step(least / _DAY, time=False)
    if time and least > 0.5:
        return next(step for step in _TIMES if step >= least)
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def _log_scale(found: Sequence[float], ticks: int) -> Scale:
    low, high = min(found), max(found)
    margin = (high / low) ** 0.08 if high > low * 1.001 else 2.0
    low, high = low / margin, high * margin
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        all_marks = (step * 10.0**power for power in powers for step in steps)
        marked = [value for value in all_marks if low <= value * (1 + 1e-9) and value <= high]
        if len(marked) <= max(ticks, 2) + 1:
            break
    else:
        marked = marked[:: math.ceil(len(marked) / max(ticks, 2))]
    return Scale(low, high, tuple(marked), tuple(f"{value:.4g}" for value in marked), log=True)


def numbers(values: Sequence[float]) -> list[str]:
    """Values that are a step apart, with the same number of places; at most five characters up to
    a billion."""
    most = max((abs(value) for value in values), default=0.0)
    divisor, unit = next(
        (scale for scale in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if most >= max(scale[0], 1e4)),
        (1, ""),
    )
    step = (values[1] - values[0] if len(values) > 1 else most or 1.0) / divisor
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value / divisor:,.{places}f}{unit if value else ''}" for value in values]


def times(values: Sequence[float], low: float = 0.0) -> list[str]:
    """Seconds in one unit for all: 30 s, 1:30, 5 min, 2 h, 3 d."""
    for span, unit in ((_DAY, "d"), (3600, "h"), (60, "min")):
        if all(value % span == 0 for value in values):
            texts = [f"{abs(value) / span:.0f} {unit}" for value in values]
            break
    else:
        texts = _clocked(values)
    zero = "now" if low < 0 else "0"
    return [text if value else zero for value, text in zip(values, texts, strict=True)]


def _clocked(values: Sequence[float]) -> list[str]:
    if any(value % 1 for value in values):
        return [f"{abs(value):.3g} s" for value in values]
    if all(abs(value) < 3600 for value in values):
        return [f"{abs(value) // 60:.0f}:{abs(value) % 60:02.0f}" for value in values]
    return [
        f"{abs(value) // 3600:.0f}:{abs(value) % 3600 // 60:02.0f}:{abs(value) % 60:02.0f}"
        for value in values
    ]


def sampled(points: Points, x: Scale, columns: int) -> list[float | None]:
    """A value for each column: the mean of the points in it, else what lies between its neighbours;
    None outside the data and in gaps."""
    values = defaultdict[int, list[float]](list)
    for at, y in points:
        if x.low <= at <= x.high:
            values[min(int(x.share(at) * columns), columns - 1)].append(y)
    found: list[float | None] = [None] * columns
    before: tuple[int, float] | None = None
    for column in sorted(values):
        known = [y for y in values[column] if math.isfinite(y)]
        here = (column, sum(known) / len(known)) if known else None
        if here:
            (first, begin), (last, end) = before or here, here
            for at in range(first, last):
                found[at] = begin + (end - begin) * (at - first) / (last - first)
            found[last] = end
        before = here
    return found


_EIGHTHS = "▁▂▃▄▅▆▇"
_FULL, _SHADE = "█", "░"  # areas that another one covers are shaded where there are no colours
_GRID = "┈"
_GUTTER = 6  # columns of the figures at the left, and a space
_ROWS_A_TICK, _COLUMNS_A_TICK = 3, 12
_LEGEND = {"line": "━━", "area": "██"}


@dataclass(frozen=True, slots=True)
class Series:
    """Data of one colour, a variable of the theme; those of lines and areas in the order of x."""

    name: str
    points: Points
    kind: Literal["line", "marked", "area", "points"] = "line"  # marked: a line through points
    color: str = "$text-primary"
    marker: str = "●"  # of points, also of those on a line


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that stands out, with a word beside it."""

    x: float
    y: float
    label: str = ""
    marker: str = "★"
    color: str = "$text-primary"


class Chart(Canvas):
    """See above. ``empty`` is what it says without data."""

    plot: Region  # the cells that have the data
    across: Scale
    upwards: Scale

    ALLOW_SELECT = False
    DEFAULT_CSS = "Chart { height: 1fr; width: 1fr; }"

    def __init__(
        self,
        *,
        x: Axis,
        y: Axis,
        empty: str = "nothing yet",
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(1, 1, id=id, classes=classes)
        self.x, self.y, self.empty = x, y, empty
        self.series: Sequence[Series] = ()
        self.marks: Sequence[Mark] = ()

    def show(self, series: Sequence[Series], marks: Sequence[Mark] = ()) -> None:
        """Draw these instead of what was shown."""
        self.series, self.marks = series, marks
        self._draw()

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw())

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        if not self.is_attached or min(self.size) < 2:
            return
        with self.batch_refresh():
            self.reset(self.size)
            if not self.marks and not any(one.points for one in self.series):
                style = self._style("$text-muted")
                at = max((self.size.width - len(self.empty)) // 2, 0)
                self._write(at, self.size.height // 2, self.empty, style)
            else:
                self._draw_all()

    def _draw_all(self) -> None:
        headed = len(self.series) > 1 or bool(self.y.label)
        left, top = _GUTTER, int(headed)
        width, height = max(self.size.width - left, 1), max(self.size.height - top - 1, 1)
        self.plot = Region(left, top, width, height)
        points = [(x, y) for one in self.series for x, y in one.points if y == y]
        points += [(mark.x, mark.y) for mark in self.marks]
        across, upwards = width // _COLUMNS_A_TICK, max(height // _ROWS_A_TICK, 1)
        self.across = scale(self.x, [x for x, _ in points], across, whole=False)
        self.upwards = scale(self.y, [y for _, y in points], upwards, whole=True)
        self._draw_axes()
        for one in self.series:
            if one.kind == "area":
                self._draw_area(one)
            elif one.kind != "points":
                self._draw_line(one)
            if one.kind in ("marked", "points"):
                cells = [self._cell(x, y) for x, y in one.points if y == y]
                self.set_pixels(cells, one.marker, self._style(one.color))
        marked = [(mark, self._cell(mark.x, mark.y)) for mark in self.marks]
        for mark, cell in reversed(marked):
            self.set_pixel(*cell, mark.marker, self._bold(mark))
        for mark, cell in marked:  # no label covers a point
            self._draw_label(mark, cell)
        if headed:
            self._draw_head()

    def _level(self, y: float) -> float:
        """How far down a value is; always within the plot."""
        return self.plot.bottom - 0.01 - self.upwards.share(y) * (self.plot.height - 0.02)

    def _cell(self, x: float, y: float) -> tuple[int, int]:
        """Column and row of a point."""
        width = self.plot.width
        return self.plot.x + min(int(self.across.share(x) * width), width - 1), int(self._level(y))

    def _draw_axes(self) -> None:
        plot = self.plot
        grid, text = self._style("$border-blurred"), self._style("$text-muted")
        for value, label in zip(self.upwards.ticks, self.upwards.labels, strict=True):
            row = int(self._level(value))
            self.set_pixels(((c, row) for c in plot.column_range), _GRID, grid)
            self._write(plot.x - 1 - len(label), row, label, text)
        free, end = 0, plot.right - len(self.x.label)
        self._write(end, plot.bottom, self.x.label, text)
        for value, label in zip(self.across.ticks, self.across.labels, strict=True):
            column, _ = self._cell(value, self.upwards.low)
            at = min(column - len(label) // 2, plot.right - len(label))
            if at >= free and at + len(label) <= end - bool(self.x.label):
                self._write(at, plot.bottom, label, text)
                free = at + len(label) + 2

    def _draw_head(self) -> None:
        """The unit of what goes up at the left, the legend at the right."""
        self._write(
            max(_GUTTER - 1 - len(self.y.label), 0), 0, self.y.label, self._style("$text-muted")
        )
        at = self.size.width
        for one in reversed(self.series if len(self.series) > 1 else ()):
            sample = _LEGEND.get(one.kind, one.marker).replace(_FULL, self._fill(one))
            at -= len(sample) + len(one.name) + 1
            if at <= max(_GUTTER - 1, len(self.y.label)):
                return  # no room for more
            self._write(at, 0, sample, self._style(one.color))
            self._write(at + len(sample) + 1, 0, one.name, self._style("$text-muted"))
            at -= 2

    def _draw_area(self, one: Series) -> None:
        plot, style, fill = self.plot, self._style(one.color), self._fill(one)
        for x, value in enumerate(sampled(one.points, self.across, plot.width), plot.x):
            if value is None:
                continue
            eighths = round(self.upwards.share(value) * plot.height * 8)
            full, part = divmod(max(eighths, 1), 8)  # nothing at all is a thin line, not a gap
            self.set_pixels(((x, plot.bottom - 1 - r) for r in range(full)), fill, style)
            if part:
                row = plot.bottom - 1 - full
                under, below = self.get_pixel(x, row)
                on = f"{style} on {below}" if under == _FULL else style
                self.set_pixel(x, row, _EIGHTHS[part - 1], on)

    def _draw_line(self, one: Series) -> None:
        parts = []
        before: tuple[float, float] | None = None
        for at, value in enumerate(sampled(one.points, self.across, self.plot.width * 2)):
            here = None if value is None else (self.plot.x + at / 2, self._level(value))
            if here:
                parts.append((*(before or here), *here))
            before = here
        self.draw_hires_lines(parts, style=self._style(one.color))

    def _bold(self, mark: Mark) -> str:
        return f"bold {self._style(mark.color)}"

    def _draw_label(self, mark: Mark, cell: tuple[int, int]) -> None:
        """Beside the point, else above or below; nowhere if others are in all these places."""
        (column, row), width = cell, len(mark.label)
        right, left, middle = column + 2, column - 1 - width, column - width // 2
        beside = ((right, 0), (left, 0), (right, -1), (right, 1), (left, 1), (left, -1))
        for at, down in (*beside, (middle, -1), (middle, 1)):
            line = row + down
            place = Region(at, line, width, 1)
            # A blank between it and its neighbours.
            around = place.grow((0, 1, 0, 1)).intersection(self.plot)
            if self.plot.contains_region(place) and self._free(around):
                self._write(at, line, mark.label, self._bold(mark))
                return

    def _free(self, place: Region) -> bool:
        return all(self.get_pixel(x, place.y)[0] in (" ", _GRID) for x in place.column_range)

    def _write(self, x: int, y: int, text: str, style: str) -> None:
        for at, char in enumerate(text):
            self.set_pixel(x + at, y, char, style)

    def _fill(self, one: Series) -> str:
        """The sign of an area: without colours, one that another covers is shaded."""
        return _SHADE if self.app.no_color and one is not self.series[-1] else _FULL

    def _style(self, color: str) -> str:
        """A variable of the theme in Rich's words."""
        found = self.app.theme_variables
        value, _, _ = found.get(color.removeprefix("$"), color).partition(" ")  # without its alpha
        parsed = Color.parse(found["foreground"] if value == "auto" else value)
        return str(Style(color=parsed.rich_color))
