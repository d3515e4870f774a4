"""Stop conditions of a job: Ctrl-C, SIGTERM or the process that it runs in (once to finish the
running rows, twice to stop at once), and the time that it was given."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """How often a job was told to end."""

    def __init__(self, max_time_s: float | None = None) -> None:
        """``max_time_s`` counts from now: after it nothing new is started."""
        self.count = 0
        self._end = None if max_time_s is None else time.monotonic() + max_time_s

    @property
    def draining(self) -> bool:
        """Start nothing new: there was a signal, or the job's time is over."""
        return self.count >= 1 or (self._end is not None and time.monotonic() >= self._end)

    @property
    def stopping(self) -> bool:
        """Give up what runs."""
        return self.count >= 2

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Counts them within, and if there were any, ignores them from then on. Only for the main
        thread, as Python demands, and within ``sigterm_as_ctrl_c``."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            # Once asked to end, a signal that comes late must not take the report away.
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self.count else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """While no row runs, SIGTERM ends the command as Ctrl-C does: with files closed.

    Both signals are as before afterwards.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
