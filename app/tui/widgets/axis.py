"""The axes of a chart: how far they go, which values are marked on them, and how these are told."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STEPS = (1, 2, 5, 10)
_DAY = 86400
# Of time, in seconds: steps that people count in.
_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, _DAY)


@dataclass(frozen=True, slots=True)
class Axis:
    """What is asked of an axis. ``low`` and ``high`` fix its ends; without them it fits the data.

    ``time`` is in seconds, which are told as 0:30 or 5 min; below 0 they are ago, and 0 is now.
    ``log`` has the same distance between 1 and 2 as between 10 and 20; its data are above 0.
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
        """Where a value is, 0 to 1; what is beyond an end is at it."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return min(max((value - low) / (high - low), 0.0), 1.0)


def scale(axis: Axis, values: Iterable[float], ticks: int, *, whole: bool, room: bool) -> Scale:
    """``axis`` over ``values``, with about ``ticks`` steps. ``whole`` ends at a marked value, and
    begins at 0 unless something is below; ``room`` leaves some at both ends."""
    found = list(values)
    if axis.log:
        return _log_scale(axis, [value for value in found if value > 0] or [1.0], ticks, room)
    low = min(found, default=0.0) if axis.low is None else axis.low
    high = max(found, default=1.0) if axis.high is None else axis.high
    if whole and axis.low is None:
        low = min(low, 0.0)
    if high <= low:
        high = low + 1.0
    elif room and not whole:
        margin = (high - low) * 0.06
        low = low - margin if axis.low is None else low
        high = high + margin if axis.high is None else high
    step = _step((high - low) / max(ticks, 1), time=axis.time)
    if whole and axis.high is None:
        high = math.ceil(high / step - 1e-9) * step
    if whole and axis.low is None:
        low = math.floor(low / step + 1e-9) * step
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


def _log_scale(axis: Axis, found: Sequence[float], ticks: int, room: bool) -> Scale:
    low, high = axis.low or min(found), axis.high or max(found)
    margin = (high / low) ** 0.08 if room else 1.0
    if high <= low * 1.001:
        margin = 2.0
    low = low / margin if axis.low is None else low
    high = high * margin if axis.high is None else high
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        marked = [s * 10.0**power for power in powers for s in steps]
        marked = [value for value in marked if low <= value * (1 + 1e-9) and value <= high]
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
    if all(value % _DAY == 0 for value in values):
        texts = [f"{abs(value) / _DAY:.0f} d" for value in values]
    elif all(value % 3600 == 0 for value in values):
        texts = [f"{abs(value) / 3600:.0f} h" for value in values]
    elif all(value % 60 == 0 for value in values):
        texts = [f"{abs(value) / 60:.0f} min" for value in values]
    elif any(value % 1 for value in values):
        texts = [f"{abs(value):.3g} s" for value in values]
    elif all(abs(value) < 3600 for value in values):
        texts = [f"{abs(value) // 60:.0f}:{abs(value) % 60:02.0f}" for value in values]
    else:
        texts = [
            f"{abs(value) // 3600:.0f}:{abs(value) % 3600 // 60:02.0f}:{abs(value) % 60:02.0f}"
            for value in values
        ]
    zero = "now" if low < 0 else "0"
    return [text if value else zero for value, text in zip(values, texts, strict=True)]


class Plot:
    """The part of a chart that has the data, in cells of the terminal."""

    x: Scale
    y: Scale

    def __init__(self, left: int, top: int, width: int, height: int) -> None:
        self.left, self.top, self.width, self.height = left, top, width, height
        self.right, self.bottom = left + width, top + height

    def level(self, y: float) -> float:
        """How far down a value is; always within the plot."""
        return self.bottom - 0.01 - self.y.share(y) * (self.height - 0.02)

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """Column and row of a point."""
        column = self.left + min(int(self.x.share(x) * self.width), self.width - 1)
        return column, int(self.level(y))


def sampled(points: Sequence[tuple[float, float]], x: Scale, columns: int) -> list[float | None]:
    """A value for each column: the mean of the points in it, else what lies between its neighbours;
    None outside the data and in gaps."""
    sums, counts = [0.0] * columns, [0] * columns
    gap: set[int] = set()
    for at, y in points:
        if not x.low <= at <= x.high:
            continue
        column = min(int(x.share(at) * columns), columns - 1)
        if math.isfinite(y):
            sums[column] += y
            counts[column] += 1
        else:
            gap.add(column)
    found: list[float | None] = [s / n if n else None for s, n in zip(sums, counts, strict=True)]
    last: int | None = None
    for column in range(columns):
        value = found[column]
        if value is None:
            if column in gap:
                last = None
            continue
        if last is not None and column - last > 1:
            begin = found[last]
            assert begin is not None
            for between in range(last + 1, column):
                part = (between - last) / (column - last)
                found[between] = begin + (value - begin) * part
        last = column
    return found
