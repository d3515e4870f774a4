"""How often to show what has come: less often where showing it takes much of the processor.

An engine on the processor uses every core; what the screen takes is taken from it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_OFTEN_S = 0.12
_LEAST_OFTEN_S = 0.5
_SHARE = 0.10  # of one core


class Pace:
    """``interval`` says how long to wait: the processor time since the last time decides."""

    def __init__(self) -> None:
        self.interval = _MOST_OFTEN_S  # seconds between two showings, now
        self._last = float("-inf")
        self._used: float | None = None

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Around a showing. Painting comes after it and is counted when the next one begins."""
        used, now = time.thread_time(), time.monotonic()
        if self._used is not None and now > self._last:
            cost = used - self._used
            wanted = min(_LEAST_OFTEN_S, max(_MOST_OFTEN_S, cost / _SHARE))
            self.interval += (wanted - self.interval) / 4  # one slow frame changes little
        self._used, self._last = used, now
        yield
