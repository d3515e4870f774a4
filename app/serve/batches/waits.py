"""Batches that cannot go on now: why, and when each is tried again."""

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from app.serve.batches.record import BatchError
from app.serve.batches.run import OtherModelError
from app.serve.errors import HttpError, UnknownModelError
from runtimes.errors import IngotError, OutOfMemoryError
from runtimes.untrusted import visible

logger = logging.getLogger(__name__)

FIRST_S, LONGEST_S = 1.0, 60.0
MOST_TRIES = 8  # without a row that was answered between them
_MOST_DOUBLED = 20  # times, after which every pause is the longest
# What the user of the server can change: a batch waits for it as long as it takes.
_LASTING = (HttpError, UnknownModelError, OtherModelError, OutOfMemoryError)


@dataclass(slots=True)
class _Wait:
    due: float
    problem: BatchError
    tries: int
    rows: int


@dataclass(slots=True)
class Waits:
    """Thread-safe. Messages name files below ``data`` without that: clients read them."""

    data: Path
    _waits: dict[str, _Wait] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, identity: str, error: Exception, rows: int) -> BatchError | None:
        """Let a batch with so many answered rows wait because of ``error``; longer each time. The
        error, if it is to be tried no more."""
        known = isinstance(error, (IngotError, HttpError))
        said = str(error).replace(f"{self.data}{os.sep}", "") if known else "an internal error"
        with self._lock:
            before = self._waits.get(identity)
            tries = 1 + (before.tries if before is not None and before.rows >= rows else 0)
            if not isinstance(error, _LASTING) and tries >= MOST_TRIES:
                self._waits.pop(identity, None)
                return BatchError.of("engine_error", said)
            pause = min(FIRST_S * 2 ** min(tries - 1, _MOST_DOUBLED), LONGEST_S)
            problem = BatchError.of(
                "waiting", f"{said}. The batch goes on by itself when that is over"
            )
            self._waits[identity] = _Wait(time.monotonic() + pause, problem, tries, rows)
        if before is None or before.problem != problem:
            why = visible(str(error)) if known else said
            logger.warning("%s waits: %s", identity, why, exc_info=None if known else error)
        return None

    def end(self, identity: str) -> None:
        """It need not wait any more."""
        with self._lock:
            self._waits.pop(identity, None)

    def left(self, identity: str) -> float:
        """Seconds until it may be tried; 0 for one that may be tried now."""
        wait = self._waits.get(identity)
        return 0.0 if wait is None else max(0.0, wait.due - time.monotonic())

    def problem(self, identity: str) -> BatchError | None:
        """Why it waits; None for one that does not."""
        wait = self._waits.get(identity)
        return None if wait is None else wait.problem
