"""What a folder of built files amounts to: its table, and its chart of size against quality."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

from quantize.manifest import load_manifest
from quantize.report.chart import Chart, make_chart
from quantize.report.facts import comparable_parts, is_steady, recommended, sentence
from quantize.report.table import COLUMNS

REPORT = "report.html"

_HEADINGS = {
    "size": "MB",
    "bits": "bits",
    "kl": "KL",
    "top": "same top",
    "accuracy": "accuracy",
    "decode": "tok/s",
    "decode_16": "x16 tok/s",
    "peak": "peak MB",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A file."""

    mark: str  # its letter in the chart; "" without one
    recipe: str
    cells: tuple[str, ...]
    path: Path


@dataclass(frozen=True, slots=True)
class Result:
    """The files of ``folder``."""

    folder: Path
    model: str
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    advice: str  # recommends a file, where they were measured
    chart: Chart | None

    @property
    def report(self) -> Path | None:
        """The page with all figures, if it is there."""
        path = self.folder / REPORT
        return path if path.is_file() else None

    def plot(self, width: int, height: int) -> list[str]:
        """The chart as lines of text; none without measurements or in too little room."""
        marks = {row.recipe: row.mark for row in self.rows}
        return draw(self.chart, marks, width, height) if self.chart else []


def read_result(folder: Path) -> Result:
    """What ``folder`` holds now; figures that may not be compared with the others are left to the
    report. Raises ModelError without a readable manifest."""
    main, *apart = comparable_parts(load_manifest(folder))
    bare = [
        dataclasses.replace(entry, quality=None, fidelity=None, speed=None)
        for part in apart
        for entry in part.files
    ]
    manifest = dataclasses.replace(main, files=(*main.files, *bare))
    chart = make_chart(manifest.files)
    order = [point.label for point in chart.points] if chart else []
    marks = dict(zip(order, ascii_uppercase, strict=False))  # from the smallest file on
    entries = sorted(manifest.files, key=lambda e: (e.bytes, e.recipe))
    columns = [
        (heading, COLUMNS[name].of)
        for name, heading in _HEADINGS.items()
        if any(map(COLUMNS[name].of, entries))
    ]
    best = recommended(manifest.files)
    remark = "; speeds with * were measured on a busy machine and are not compared"
    if all(is_steady(entry.speed) for entry in entries if entry.speed):
        remark = ""
    return Result(
        folder=folder,
        model=manifest.model.name,
        headings=tuple(heading for heading, _ in columns),
        rows=tuple(
            Row(
                marks.get(e.recipe, ""),
                e.recipe,
                tuple(of(e) or "-" for _, of in columns),
                folder / e.path,
            )
            for e in entries
        ),
        advice=sentence(manifest, best) + remark if best else "",
        chart=chart,
    )


# The chart in characters: letters for points, readable without colour. A plotting library would
# tell the points apart by colour, and place no names.

_LEFT = 8  # columns of the axis' figures
_LEAST = (30, 6)  # columns and rows; below, nothing can be read


def draw(chart: Chart, marks: Mapping[str, str], width: int, height: int) -> list[str]:
    """Lines of exactly ``width`` characters, ``height`` at most: the divergence upwards on a
    logarithmic scale, the size to the right. ``marks`` has each point's letter by its label.

    Names stand beside their letters as far as there is room. Empty where there is too little.
    """
    if width < _LEAST[0] or height < _LEAST[1]:
        return []
    columns, rows = width - _LEFT - 1, height - 3
    grid = [[" "] * columns for _ in range(rows)]
    places = []
    for point in chart.points:
        cells = grid[_row(point.divergence, chart, rows)]
        column = _near(cells, _cell(point.megabytes, chart.x, columns))
        cells[column] = marks.get(point.label, "o")
        places.append((cells, column, point.label))
    for place in places:
        _name(*place)
    figures: dict[int, str] = {}
    for tick in chart.y_ticks:
        figures.setdefault(_row(tick, chart, rows), f"{tick:.4g}")  # none over another
    lines = ["KL".rjust(_LEFT) + " nats; lower is closer to the original".ljust(columns)]
    lines += [
        f"{figures.get(row, ''):>{_LEFT}}{'┤' if row in figures else '│'}" + "".join(cells)
        for row, cells in enumerate(grid)
    ]
    lines += _bottom(chart, columns)
    return [line[:width].ljust(width) for line in lines]


def _cell(value: float, limits: tuple[float, float], cells: int) -> int:
    low, high = limits
    return min(max(round((value - low) / (high - low) * (cells - 1)), 0), cells - 1)


def _row(divergence: float, chart: Chart, rows: int) -> int:
    low, high = (math.log(limit) for limit in chart.y)
    return rows - 1 - _cell(math.log(divergence), (low, high), rows)


def _near(cells: list[str], column: int) -> int:
    """``column``, or the nearest that no other point has taken; right of it first."""
    free = [at for at, cell in enumerate(cells) if cell == " "]
    return min(free, key=lambda at: (abs(at - column), -at), default=column)


def _name(cells: list[str], column: int, label: str) -> None:
    """Write ``label`` right of its point, else left of it, else not at all."""
    end, start = column + 2 + len(label), column - 1 - len(label)
    if end < len(cells) and not "".join(cells[column + 1 : end + 1]).strip():
        cells[column + 1 : end] = f" {label}"
    elif start > 0 and not "".join(cells[start - 1 : column]).strip():
        cells[start:column] = f"{label} "


def _bottom(chart: Chart, columns: int) -> list[str]:
    """The axis and its figures, the last one with the unit."""
    axis, figures = ["─"] * columns, [" "] * (columns + 4)
    end = -1
    for tick in chart.x_ticks:
        column = _cell(tick, chart.x, columns)
        last = tick == chart.x_ticks[-1]
        text = f"{tick:,.3f}".rstrip("0").rstrip(".") + (" MB" if last else "")
        start = min(max(column - len(text) // 2, 0), columns - len(text))
        axis[column] = "┬"
        if start > end:
            figures[start : start + len(text)] = text
            end = start + len(text)
    margin = " " * _LEFT
    return [f"{margin}└{''.join(axis)}", f"{margin} {''.join(figures[:columns])}"]
