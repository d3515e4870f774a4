"""The chart as inline SVG. Colours of lines and letters come from the page's variables."""

from __future__ import annotations

import math
from html import escape

from quantize.report.chart import Chart, colour_of

_WIDTH, _HEIGHT = 560, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 20, 16, 62
_RADIUS = 8
_CHARACTER = 8.0  # a letter's width, for labels that must not lie on each other
_LINE = 17
# Attributes for programs that do not apply the page's style to what is inside the picture; where
# they do, the style counts.
_GRID = 'class="grid" stroke="#aaaaaa" stroke-width="0.6"'
_FRONT = 'class="front" fill="none" stroke="#0a5fd0" stroke-width="2" stroke-dasharray="6 4"'
# Directions in which a label may lie from its point, the best first. Left of the front and below it
# there is nothing; its line leaves a point to the right.
_FRONT_SIDES = (
    *((-1, 0), (-1, 12), (0, _LINE + 3), (-1, _LINE + 7), (1, 14), (1, -14), (1, 0)),
    *((1, _LINE + 7), (0, -_LINE), (0, 2 * _LINE + 3), (-1, -14)),
)
_SIDES = (
    *((1, 0), (1, -12), (1, 12), (0, -_LINE), (-1, 0), (-1, -12), (0, _LINE + 3)),
    *((1, -_LINE - 7), (1, _LINE + 7), (0, -2 * _LINE)),
)


def draw(chart: Chart) -> str:
    """An ``svg`` element."""
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 46}" role="img"'
        ' aria-label="Size of each file against its divergence from the original">'
    ]
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in chart.x_ticks:
        x = _x(chart, tick)
        parts.append(f'<line {_GRID} x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + 18, f"{tick:,g}", "middle"))
    for tick in chart.y_ticks:
        y = _y(chart, tick)
        parts.append(f'<line {_GRID} x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 7, y + 5, f"{tick:g}", "end"))
    parts.append(_text((_LEFT + right) / 2, bottom + 40, "size on disk, MB", "middle"))
    middle = (_TOP + bottom) / 2
    turned = f'transform="rotate(-90 15 {middle:.0f})"'
    parts.append(_text(15, middle, "mean KL divergence, nats", "middle", turned))
    parts.append(f'<path {_FRONT} d="{_front(chart)}"/>')
    for point in chart.points:
        x, y = _x(chart, point.megabytes), _y(chart, point.divergence)
        shown = escape(f"{point.label}: {point.megabytes:,.1f} MB, KL {point.divergence:.2g}")
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="{point.colour}">'
            f"<title>{shown}</title></circle>"
        )
    for point, (x, y, anchor) in zip(chart.points, label_places(chart), strict=True):
        parts.append(_text(x, y, point.label, anchor, 'class="label"'))
    parts.append(_legend(chart))
    parts.append("</svg>")
    return "\n".join(parts)


def label_places(chart: Chart) -> list[tuple[float, float, str]]:
    """Where each point's label goes: beside its point, on the side where there is room."""
    spots = [(_x(chart, p.megabytes), _y(chart, p.divergence)) for p in chart.points]
    taken = [_box(x, y + 5, "middle", length=2) for x, y in spots]
    places = []
    for point, (x, y) in zip(chart.points, spots, strict=True):
        candidates = [_beside(x, y, *side) for side in (_FRONT_SIDES if point.on_front else _SIDES)]
        size = len(point.label)
        costs = [_cost(_box(*candidate, length=size), taken) for candidate in candidates]
        place = candidates[costs.index(min(costs))]
        taken.append(_box(*place, length=size))
        places.append(place)
    return places


def offsets(chart: Chart) -> list[tuple[float, float, str]]:
    """The same places as distances from the points, right and up."""
    return [
        (x - _x(chart, point.megabytes), _y(chart, point.divergence) - y, anchor)
        for point, (x, y, anchor) in zip(chart.points, label_places(chart), strict=True)
    ]


_Box = tuple[float, float, float, float]


def _beside(x: float, y: float, side: int, down: int) -> tuple[float, float, str]:
    anchor = {1: "start", -1: "end", 0: "middle"}[side]
    return x + side * (_RADIUS + 5), y + 5 + down, anchor


def _box(x: float, y: float, anchor: str, *, length: int) -> _Box:
    """Left, top, right, bottom of a text whose baseline is at ``y``."""
    wide = length * _CHARACTER
    left = {"start": x, "end": x - wide, "middle": x - wide / 2}[anchor]
    return left, y - _LINE + 3, left + wide, y + 3


def _cost(box: _Box, taken: list[_Box]) -> float:
    """The area that lies on others, and what sticks out of the frame."""
    left, top, right, bottom = box
    over = 0.0
    for a, b, c, d in taken:
        over += max(0.0, min(right, c) - max(left, a)) * max(0.0, min(bottom, d) - max(top, b))
    out = max(0.0, _LEFT - left) + max(0.0, right - _WIDTH + 2)
    out += max(0.0, _TOP - top) + max(0.0, bottom - (_HEIGHT - _BOTTOM))
    return over + 100 * out


def _front(chart: Chart) -> str:
    """Steps: between two files of the front the smaller one is the best there is."""
    front = [point for point in chart.points if point.on_front]
    path = ""
    for i, point in enumerate(front):
        x, y = _x(chart, point.megabytes), _y(chart, point.divergence)
        path += f"H{x:.1f}V{y:.1f}" if i else f"M{x:.1f},{_TOP}V{y:.1f}"
    return path + f"H{_WIDTH - _RIGHT}"


def _legend(chart: Chart) -> str:
    """A bar of the colours with the slowest and the fastest file's speed."""
    if chart.speeds is None:
        return _text(_LEFT, _HEIGHT + 20, "speed was not measured", "start")
    low, high = chart.speeds
    y, left, wide, steps = _HEIGHT + 8, 226, 170, 34
    cells = []
    for i in range(steps):
        speed = low * (high / low) ** (i / (steps - 1))
        fill, x = colour_of(speed, chart.speeds), left + wide * i / steps
        cells.append(
            f'<rect x="{x:.1f}" y="{y}" width="{wide / steps + 0.5:.1f}" height="14"'
            f' fill="{fill}"/>'
        )
    cells.append(_text(left - 8, y + 12, f"decode, tokens/s: {low:,.0f}", "end"))
    cells.append(_text(left + wide + 8, y + 12, f"{high:,.0f}", "start"))
    cells.append(f'<path {_FRONT} d="M{left},{y + 30}h34"/>')
    cells.append(_text(left + 42, y + 35, "nothing else is as small and as close", "start"))
    return "\n".join(cells)


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _x(chart: Chart, megabytes: float) -> float:
    low, high = chart.x
    return _LEFT + (megabytes - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)


def _y(chart: Chart, divergence: float) -> float:
    low, high = (math.log(value) for value in chart.y)
    place = (math.log(divergence) - low) / (high - low)
    return _HEIGHT - _BOTTOM - place * (_HEIGHT - _TOP - _BOTTOM)
