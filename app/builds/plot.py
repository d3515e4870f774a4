"""A chart of size against divergence in characters: letters for points, readable without colour.

A plotting library would tell the points apart by colour, and place no names; these are the hundred
lines that do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from quantize.report.chart import Chart

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
    places = [
        (_column(p.megabytes, chart.x, columns), _row(p.divergence, chart.y, rows), p.label)
        for p in chart.points
    ]
    for number, (column, row, label) in enumerate(places):
        free = _near(grid[row], column)
        grid[row][free] = marks.get(label, "o")
        places[number] = free, row, label
    for column, row, label in places:
        _name(grid[row], column, label)
    figures = _left_figures(chart, rows)
    lines = ["KL".rjust(_LEFT) + " nats; lower is closer to the original".ljust(columns)]
    lines += [
        f"{figures.get(row, ''):>{_LEFT}}{'┤' if row in figures else '│'}" + "".join(cells)
        for row, cells in enumerate(grid)
    ]
    lines += _bottom(chart, columns)
    return [line[:width].ljust(width) for line in lines]


def _column(value: float, limits: tuple[float, float], columns: int) -> int:
    share = (value - limits[0]) / (limits[1] - limits[0])
    return min(max(round(share * (columns - 1)), 0), columns - 1)


def _row(value: float, limits: tuple[float, float], rows: int) -> int:
    low, high, at = (math.log(v) for v in (*limits, value))
    share = (at - low) / (high - low)
    return rows - 1 - min(max(round(share * (rows - 1)), 0), rows - 1)


def _near(cells: Sequence[str], column: int) -> int:
    """``column``, or the nearest that no other point has taken; right of it first."""
    free = [at for at, cell in enumerate(cells) if cell == " "]
    return min(free, key=lambda at: (abs(at - column), -at), default=column)


def _name(cells: list[str], column: int, label: str) -> None:
    """Write ``label`` right of its point, else left of it, else not at all."""
    after = slice(column + 1, column + 2 + len(label))
    before = slice(column - 1 - len(label), column)
    if after.stop < len(cells) and _is_free(cells, after, column + 3 + len(label)):
        cells[after] = f" {label}"
    elif before.start > 0 and _is_free(cells, slice(before.start - 1, before.stop)):
        cells[before] = f"{label} "


def _is_free(cells: Sequence[str], where: slice, stop: int | None = None) -> bool:
    return all(cell == " " for cell in cells[where.start : stop or where.stop])


def _left_figures(chart: Chart, rows: int) -> dict[int, str]:
    """Ticks by their rows, those that would collide left out."""
    found: dict[int, str] = {}
    for tick in chart.y_ticks:
        found.setdefault(_row(tick, chart.y, rows), f"{tick:.4g}")
    return found


def _bottom(chart: Chart, columns: int) -> list[str]:
    """The axis and its figures, the last one with the unit."""
    axis, figures = ["─"] * columns, [" "] * (columns + 4)
    end = -1
    for tick in chart.x_ticks:
        column = _column(tick, chart.x, columns)
        last = tick == chart.x_ticks[-1]
        text = f"{tick:,.3f}".rstrip("0").rstrip(".") + (" MB" if last else "")
        start = min(max(column - len(text) // 2, 0), columns - len(text))
        axis[column] = "┬"
        if start > end:
            figures[start : start + len(text)] = text
            end = start + len(text)
    margin = " " * _LEFT
    return [f"{margin}└{''.join(axis)}", f"{margin} {''.join(figures[:columns])}"]
