"""Batches that cannot go on now: why, and when each is tried again."""

import logging
import threading
import time
from dataclasses import dataclass, field

from app.serve.batches.record import BatchError
from app.serve.batches.run import OtherModelError
from app.serve.errors import HttpError, UnknownModelError
from runtimes.errors import IngotError, OutOfMemoryError

logger = logging.getLogger(__name__)

FIRST_S, LONGEST_S = 1.0, 60.0
MOST_TRIES = 8  # without a row that was answered between them
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
    """Thread-safe."""

    _waits: dict[str, _Wait] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, identity: str, error: Exception, rows: int) -> BatchError | None:
        """Let a batch with so many answered rows wait because of ``error``; longer each time. The
        error, if it is to be tried no more."""
        said = str(error) if isinstance(error, (IngotError, HttpError)) else "an internal error"
        with self._lock:
            before = self._waits.get(identity)
            tries = 1 + (before.tries if before is not None and before.rows >= rows else 0)
            if not isinstance(error, _LASTING) and tries >= MOST_TRIES:
                self._waits.pop(identity, None)
                return BatchError("engine_error", said)
            pause = min(FIRST_S * 2 ** (tries - 1), LONGEST_S)
            problem = BatchError(
                "waiting", f"{said}. The batch goes on by itself when that is over"
            )
            self._waits[identity] = _Wait(time.monotonic() + pause, problem, tries, rows)
        if before is None or before.problem != problem:
            known = isinstance(error, (IngotError, HttpError))
            logger.warning("%s waits: %s", identity, said, exc_info=None if known else error)
        return None

    def end(self, identity: str) -> None:
        """It need not wait any more."""
        with self._lock:
            self._waits.pop(identity, None)

    def over(self, identity: str) -> bool:
        """Whether it may be tried now."""
        wait = self._waits.get(identity)
        return wait is None or wait.due <= time.monotonic()

    def problem(self, identity: str) -> BatchError | None:
        """Why it waits; None for one that does not."""
        wait = self._waits.get(identity)
        return None if wait is None else wait.problem

    def pause(self) -> float | None:
        """Seconds until one of them may be tried; None if none waits."""
        with self._lock:
            dues = [wait.due for wait in self._waits.values()]
        return max(0.01, min(dues) - time.monotonic()) if dues else None
