"""The speeds of a job over its whole time, in bounded memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second at a moment of the run (seconds since its begin)."""

    at: float
    prefill: float
    decode: float


class SpeedHistory:
    """At most ``most`` points: when they are that many, each two become their mean, and from then
    on twice as much time goes into a new one."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._points: list[Speed] = []
        self._open: list[Speed] = []
        self._group = 1

    def add(self, speed: Speed) -> None:
        """A point that is later than the last one."""
        self._open.append(speed)
        if len(self._open) < self._group:
            return
        self._points.append(_mean(self._open))
        self._open.clear()
        if len(self._points) >= self._most:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            self._points = [_mean([a, b]) for a, b in pairs]
            self._group *= 2

    def points(self) -> tuple[Speed, ...]:
        """All of them in order."""
        return (*self._points, _mean(self._open)) if self._open else tuple(self._points)


def _mean(points: list[Speed]) -> Speed:
    count = len(points)
    return Speed(
        points[-1].at,
        sum(point.prefill for point in points) / count,
        sum(point.decode for point in points) / count,
    )
