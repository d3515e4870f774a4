"""The chart of size against divergence: its points, limits and ticks, for all who draw it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quantize.manifest import FileEntry
from quantize.report.facts import decode_speed, divergence, pareto_front

_MOST = 1e30  # nats; a scale of powers has an end


@dataclass(frozen=True, slots=True)
class Point:
    """A measured file: size in MB, divergence in nats, tokens a second."""

    label: str
    megabytes: float
    divergence: float
    speed: float | None
    on_front: bool


@dataclass(frozen=True, slots=True)
class SizeChart:
    """Points by size, the limits of both axes, and their ticks."""

    points: tuple[Point, ...]
    x: tuple[float, float]
    y: tuple[float, float]
    x_ticks: tuple[float, ...]
    y_ticks: tuple[float, ...]


def make_chart(entries: Sequence[FileEntry]) -> SizeChart | None:
    """The chart of the measured files, or None when there are none."""
    front = pareto_front(entries)
    points = [
        Point(e.recipe, e.bytes / 1e6, kl, decode_speed(e), e in front)
        for e in entries
        if (kl := divergence(e)) is not None and kl < _MOST
    ]
    if not points:
        return None
    points.sort(key=lambda point: point.megabytes)
    width = points[-1].megabytes * 1.12 or 1.0
    low = math.log10(min(point.divergence for point in points))
    high = math.log10(max(point.divergence for point in points))
    margin = max(0.12 * (high - low), 0.15)
    y = (10 ** (low - margin), 10 ** (high + margin))
    return SizeChart(tuple(points), (0.0, width), y, _steps(width), _powers(*y))


def _steps(most: float) -> tuple[float, ...]:
    """Round numbers from 0, about five of them."""
    raw = most / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return tuple(step * i for i in range(int(most / step) + 1))


def _powers(low: float, high: float) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten; powers alone over more than two decades."""
    digits = (1,) if math.log10(high / low) > 2 else (1, 2, 5)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = (d * 10.0**power for power in range(first, last + 1) for d in digits)
    return tuple(tick for tick in ticks if low <= tick <= high)
