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

A value that is not a number (``math.nan``) is a gap. ``now`` is an upright line. Series drawn later
cover earlier ones; a legend is shown for two or more. The figures at the left always have the same
width. The chart fills its place, from about 30x6 on; give it a height. It takes neither the focus
nor the mouse.

It is drawn on the canvas of textual-plot. That one's own chart took twelve times as long (90 ms).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.style import Style
from textual import events
from textual.color import Color
from textual_hires_canvas import Canvas

from app.tui.widgets.axis import Axis, Plot, sampled, scale

_EIGHTHS = "▁▂▃▄▅▆▇"
_FULL, _SHADE = "█", "░"  # areas that another one covers are shaded where there are no colours
_GRID, _NOW = "┈", "│"
_GUTTER = 6  # columns of the figures at the left, and a space
_ROWS_A_TICK, _COLUMNS_A_TICK = 3, 12
_LEGEND = {"line": "━━", "area": "██"}
_PLAIN = {"line": "╍╍", "area": "░░"}

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """Data of one colour, a variable of the theme; those of lines and areas in the order of x."""

    name: str
    points: Points
    kind: Literal["line", "area", "points"] = "line"
    color: str = "$text-primary"
    marker: str = "●"  # of points


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

    ALLOW_SELECT = False
    DEFAULT_CSS: ClassVar[str] = "Chart { height: 1fr; width: 1fr; }"

    def __init__(
        self,
        *,
        x: Axis | None = None,
        y: Axis | None = None,
        empty: str = "nothing yet",
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(1, 1, id=id, classes=classes)
        self.x, self.y, self.empty = x or Axis(), y or Axis(), empty
        self.series: Sequence[Series] = ()
        self.marks: Sequence[Mark] = ()
        self.now: float | None = None

    def show(
        self, series: Sequence[Series], marks: Sequence[Mark] = (), now: float | None = None
    ) -> None:
        """Draw these instead of what was shown."""
        self.series, self.marks, self.now = series, marks, now
        self._draw()

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw())

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        if not self.is_attached or self.size.width < 2 or self.size.height < 2:
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
        plot = Plot(left, top, max(self.size.width - left, 1), max(self.size.height - top - 1, 1))
        xs = [x for one in self.series for x, y in one.points if y == y]
        ys = [y for one in self.series for _, y in one.points if y == y]
        xs += [mark.x for mark in self.marks] + ([] if self.now is None else [self.now])
        ys += [mark.y for mark in self.marks]
        dots = bool(self.marks) or any(one.kind == "points" for one in self.series)
        steps = plot.width // _COLUMNS_A_TICK
        plot.x = scale(self.x, xs, steps, whole=False, room=dots)
        plot.y = scale(self.y, ys, max(plot.height // _ROWS_A_TICK, 1), whole=True, room=dots)
        self._draw_axes(plot)
        plain = self._plain_ones()
        for one in self.series:
            if one.kind == "area":
                self._draw_area(one, plot, _SHADE if one in plain else _FULL)
            elif one.kind == "line":
                self._draw_line(one, plot, dashed=one in plain)
            else:
                cells = [plot.cell(x, y) for x, y in one.points if y == y]
                self.set_pixels(cells, one.marker, self._style(one.color))
        at = [plot.cell(mark.x, mark.y) for mark in self.marks]
        for (column, row), mark in reversed(list(zip(at, self.marks, strict=True))):
            self.set_pixel(column, row, mark.marker, self._bold(mark))
        for cell, mark in zip(at, self.marks, strict=True):  # none of which covers a point
            self._draw_label(mark, cell, plot)
        if headed:
            self._draw_head()

    def _draw_axes(self, plot: Plot) -> None:
        grid, text = self._style("$border-blurred"), self._style("$text-muted")
        for value, label in zip(plot.y.ticks, plot.y.labels, strict=True):
            _, row = plot.cell(plot.x.low, value)
            self.set_pixels(((c, row) for c in range(plot.left, plot.right)), _GRID, grid)
            self._write(plot.left - 1 - len(label), row, label, text)
        if self.now is not None:
            column, _ = plot.cell(self.now, plot.y.low)
            self.set_pixels(((column, r) for r in range(plot.top, plot.bottom)), _NOW, text)
        free, end = 0, plot.right
        if self.x.label:
            end -= len(self.x.label)
            self._write(end, plot.bottom, self.x.label, text)
        for value, label in zip(plot.x.ticks, plot.x.labels, strict=True):
            column, _ = plot.cell(value, plot.y.low)
            at = min(column - len(label) // 2, plot.right - len(label))
            if at >= free and at + len(label) <= (end - 1 if self.x.label else end):
                self._write(at, plot.bottom, label, text)
                free = at + len(label) + 2

    def _draw_head(self) -> None:
        """The unit of what goes up at the left, the legend at the right."""
        self._write(
            max(_GUTTER - 1 - len(self.y.label), 0), 0, self.y.label, self._style("$text-muted")
        )
        at, plain = self.size.width, self._plain_ones()
        for one in reversed(self.series if len(self.series) > 1 else ()):
            sample = (_PLAIN if one in plain else _LEGEND).get(one.kind, one.marker)
            at -= len(sample) + len(one.name) + 1
            if at <= max(_GUTTER - 1, len(self.y.label)):
                return  # no room for more
            self._write(at, 0, sample, self._style(one.color))
            self._write(at + len(sample) + 1, 0, one.name, self._style("$text-muted"))
            at -= 2

    def _draw_area(self, one: Series, plot: Plot, fill: str) -> None:
        style = self._style(one.color)
        for column, value in enumerate(sampled(one.points, plot.x, plot.width)):
            if value is None:
                continue
            eighths = round(plot.y.share(value) * plot.height * 8)
            full, part = divmod(max(eighths, 1), 8)  # nothing at all is a thin line, not a gap
            x = plot.left + column
            self.set_pixels(((x, plot.bottom - 1 - r) for r in range(full)), fill, style)
            if part:
                row = plot.bottom - 1 - full
                under, below = self.get_pixel(x, row)
                on = f"{style} on {below}" if under == _FULL else style
                self.set_pixel(x, row, _EIGHTHS[part - 1], on)

    def _draw_line(self, one: Series, plot: Plot, *, dashed: bool) -> None:
        parts = []
        before: tuple[float, float] | None = None
        for at, value in enumerate(sampled(one.points, plot.x, plot.width * 2)):
            if value is None:
                before = None
                continue
            here = (plot.left + at / 2, plot.level(value))
            if not (dashed and at // 3 % 2):
                parts.append((*(before or here), *here))
            before = here
        self.draw_hires_lines(parts, style=self._style(one.color))

    def _bold(self, mark: Mark) -> str:
        return f"bold {self._style(mark.color)}"

    def _draw_label(self, mark: Mark, cell: tuple[int, int], plot: Plot) -> None:
        """Beside the point, else above or below; nowhere if others are in all these places."""
        (column, row), width = cell, len(mark.label)
        right, left, middle = column + 2, column - 1 - width, column - width // 2
        beside = ((right, 0), (left, 0), (right, -1), (right, 1), (left, 1), (left, -1))
        for at, down in (*beside, (middle, -1), (middle, 1)):
            line = row + down
            inside = plot.left <= at and at + width <= plot.right
            # A blank between it and its neighbours.
            first, last = max(at - 1, plot.left), min(at + width + 1, plot.right)
            if inside and plot.top <= line < plot.bottom and self._free(first, line, last - first):
                self._write(at, line, mark.label, self._bold(mark))
                return

    def _free(self, at: int, row: int, width: int) -> bool:
        return all(self.get_pixel(at + i, row)[0] in (" ", _GRID) for i in range(width))

    def _write(self, x: int, y: int, text: str, style: str) -> None:
        for at, char in enumerate(text):
            self.set_pixel(x + at, y, char, style)

    def _plain_ones(self) -> list[Series]:
        """Without colours: areas that another one covers, which are shaded, and lines after the
        first, which are dashed."""
        if not self.app.no_color:
            return []
        areas = [one for one in self.series if one.kind == "area"]
        lines = [one for one in self.series if one.kind == "line"]
        return areas[:-1] + lines[1:]

    def _style(self, color: str) -> str:
        """A variable of the theme in Rich's words."""
        found = self.app.theme_variables
        value, _, _ = found.get(color.removeprefix("$"), color).partition(" ")  # without its alpha
        parsed = Color.parse(found["foreground"] if value == "auto" else value)
        return str(Style(color=parsed.rich_color))
