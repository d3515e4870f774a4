"""Where the chart's points, lines and labels lie; both pictures are drawn from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quantize.manifest import FileEntry
from quantize.report.facts import decode_speed, divergence, pareto_front

# Matplotlib's viridis at eight places, which is readable in grey and by the colour-blind.
_VIRIDIS = ("440154", "46327e", "365c8d", "277f8e", "1fa187", "4ac16d", "a0da39", "fde725")


@dataclass(frozen=True, slots=True)
class Point:
    """A measured file: size in MB, divergence in nats, tokens a second, "#rrggbb"."""

    label: str
    megabytes: float
    divergence: float
    speed: float | None
    colour: str
    on_front: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """Points by size, the limits of both axes, their ticks, and the range of the speeds."""

    points: tuple[Point, ...]
    x: tuple[float, float]
    y: tuple[float, float]
    x_ticks: tuple[float, ...]
    y_ticks: tuple[float, ...]
    speeds: tuple[float, float] | None


def make_chart(entries: Sequence[FileEntry]) -> Chart | None:
    """The chart of the measured files, or None when there are none."""
    measured = [(e, kl) for e in entries if (kl := divergence(e)) is not None]
    if not measured:
        return None
    front = pareto_front(entries)
    speeds = [speed for e, _ in measured if (speed := decode_speed(e))]
    spread = (min(speeds), max(speeds)) if speeds else None
    points = sorted(
        (
            Point(
                e.recipe,
                e.bytes / 1e6,
                kl,
                decode_speed(e),
                colour_of(decode_speed(e), spread),
                e in front,
            )
            for e, kl in measured
        ),
        key=lambda point: point.megabytes,
    )
    most = max(point.megabytes for point in points)
    low = math.log10(min(point.divergence for point in points))
    high = math.log10(max(point.divergence for point in points))
    margin = max(0.12 * (high - low), 0.15)
    y = (10 ** (low - margin), 10 ** (high + margin))
    return Chart(
        points=tuple(points),
        x=(0.0, most * 1.12 or 1.0),
        y=y,
        x_ticks=_steps(most * 1.12 or 1.0),
        y_ticks=_powers(*y),
        speeds=spread,
    )


def colour_of(speed: float | None, spread: tuple[float, float] | None) -> str:
    """A colour "#rrggbb" on a logarithmic scale; grey for what was not measured."""
    if speed is None or spread is None:
        return "#888888"
    low, high = (math.log(value) for value in spread)
    place = (math.log(speed) - low) / (high - low) if high > low else 0.5
    at = place * (len(_VIRIDIS) - 1)
    left = min(int(at), len(_VIRIDIS) - 2)
    share = at - left
    first, second = (bytes.fromhex(_VIRIDIS[i]) for i in (left, left + 1))
    mixed = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return "#" + bytes(mixed).hex()


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
