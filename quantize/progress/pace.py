"""How fast a stage goes and how long it has left."""

import time
from collections import deque
from collections.abc import Callable

_WINDOW = 20.0  # seconds that the rate looks back; a stage's first steps are rarely typical
_MEGA = 1e6


class Pace:
    """The last seconds of a count that goes up.

    ``done``, ``total`` and ``unit`` are what `update` was last told.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.done = 0.0
        self.total: float | None = None
        self.unit = ""
        self._clock = clock
        self._seen: deque[tuple[float, float]] = deque()

    def update(self, done: float, total: float | None, unit: str) -> None:
        """Note that ``done`` of ``total`` are done now; a step back or another unit starts anew.

        The first count is where the rate begins: what an interrupted run did before costs nothing.
        """
        now = self._clock()
        if (self.unit and unit != self.unit) or done < self.done:
            self._seen.clear()
        self.done, self.total, self.unit = done, total, unit
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW:
            self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Units a second over the last twenty seconds; None before anything has moved."""
        if not self._seen:
            return None
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first and after > before else None

    @property
    def seconds_left(self) -> float | None:
        """At that rate; None without a total or a rate."""
        rate = self.rate
        if rate is None or self.total is None:
            return None
        return max(self.total - self.done, 0.0) / rate

    @property
    def share(self) -> float | None:
        """How much is done, 0 to 1; None without a total."""
        return min(self.done / self.total, 1.0) if self.total else None


def figures(pace: Pace) -> str:
    """Such as "45%, 12.5 tensors/s, 0:14 left", as much of it as is known."""
    parts = [f"{pace.share:.0%}" if pace.share is not None else amount(pace.done, pace.unit)]
    if pace.rate is not None:
        parts.append(f"{amount(pace.rate, pace.unit)}/s")
    if pace.seconds_left is not None:
        parts.append(f"{clock(pace.seconds_left)} left")
    return ", ".join(parts)


def amount(value: float, unit: str) -> str:
    """Such as "12.5 tensors"; bytes in MB."""
    if unit == "bytes":
        value, unit = value / _MEGA, "MB"
    digits = 1 if value < 100 and value != int(value) else 0
    return f"{value:,.{digits}f} {unit}".rstrip()


def clock(seconds: float) -> str:
    """Such as 0:07 or 1:02:03."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
