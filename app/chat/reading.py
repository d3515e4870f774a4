"""How far the engine has read a prompt, and when it will be through."""

from dataclasses import dataclass

from app.chat.figures import FEW


@dataclass(frozen=True, slots=True)
class Reading:
    """``read`` of ``total`` tokens; ``left_s`` is None until enough was read to tell."""

    read: int
    total: int
    left_s: float | None = None


class ReadMeter:
    """The rate is that since the first reading that found something read: what was cached is there
    at once, and says nothing of the rest. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)

    def at(self, now: float, read: int, total: int) -> Reading:
        """``read`` tokens of ``total`` have been read at ``now``."""
        read = min(read, total)
        if self._first is None and read > 0:
            self._first = self._last = (now, read)
        elif read != self._last[1]:
            self._last = (now, read)
        return Reading(read, total, self._left(now, total))

    def _left(self, now: float, total: int) -> float | None:
        if self._first is None:
            return None
        (began, before), (then, read) = self._first, self._last
        if read - before < FEW or then <= began:
            return None
        seconds = (total - read) * (then - began) / (read - before)
        return max(0.0, seconds - (now - then))
