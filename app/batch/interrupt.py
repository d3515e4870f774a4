"""Ctrl-C and SIGTERM during a job: once to finish what runs, twice to stop at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Counts signals while it is entered. Only for the main thread, as Python demands."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    @property
    def draining(self) -> bool:
        """Start nothing new."""
        return self.count >= 1

    @property
    def stopping(self) -> bool:
        """Give up what runs."""
        return self.count >= 2

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
