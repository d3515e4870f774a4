"""A download in a thread of its own, for screens that ask how it is."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.models.pulling import PullRequest, pull
from quantize.hub.client import Hub, Patience
from quantize.progress import Pace, Reporter
from runtimes.errors import IngotError

logger = logging.getLogger(__name__)


class _CancelledError(BaseException):
    """Leaves the transfer at the next piece; no ``except Exception`` on the way may keep it."""


@dataclass(frozen=True, slots=True)
class PullState:
    """How far it is; at the end with ``path``, ``error`` or ``cancelled``."""

    stage: str = ""
    done: int = 0  # bytes
    total: int | None = None  # None: not known yet
    rate: float | None = None  # bytes a second
    seconds_left: float | None = None
    note: str | None = None
    path: Path | None = None
    error: str | None = None
    cancelled: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return bool(self.cancelled or self.error or self.path)


@dataclass(frozen=True)
class _CancellableHub(Hub):
    """Does not try again once the download was cancelled."""

    check: Callable[[], None] = lambda: None

    def pause_after(self, error: Exception) -> float | None:
        self.check()
        return super().pause_after(error)


class PullJob(Reporter):
    """Brings ``request.what`` of a repository, or the only model that it has.

    Every method may be called from any thread and returns at once. What has arrived when it is
    cancelled or fails stays, and the next download of the same file resumes from there.
    """

    def __init__(self, request: PullRequest, hub: Hub | None = None) -> None:
        self.request = request
        patience = hub.patience if hub is not None else Patience()
        self._hub = _CancellableHub(patience, self._check)
        self._pace = Pace()
        self._stages = [""]
        self._cancel = threading.Event()
        self._state = PullState()  # replaced whole, by the job's thread alone
        self._thread = threading.Thread(target=self._run, daemon=True, name="pull")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def cancel(self) -> None:
        """Stop at the next piece; a connection that stalls is given up when its time is over, and
        not tried again."""
        self._cancel.set()

    def poll(self) -> PullState:
        """How far it is now. A cancelled job has ended for its user at once."""
        state = self._state
        return (
            replace(state, cancelled=True) if self._cancel.is_set() and not state.ended else state
        )

    def _run(self) -> None:
        try:
            self._now(path=pull(self.request, self, self._hub))
        except _CancelledError:
            self._now(cancelled=True)
        except (IngotError, OSError) as error:
            self._now(error=str(error) or type(error).__name__)
        except Exception as error:
            logger.exception("the download failed")
            self._now(error=f"internal error: {type(error).__name__}: {error}")

    def _now(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)

    # What it is told on its thread, as every quantize.progress.Reporter

    @contextlib.contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Begin a part of the work."""
        self._check()
        self._stages.append(text)
        self._now(stage=text)
        try:
            yield
        finally:
            self._stages.pop()
            self._now(stage=self._stages[-1])

    def advance(self, done: float, total: float | None, unit: str) -> None:
        """Note how many bytes there are."""
        self._check()
        pace = self._pace
        pace.update(done, total, unit)
        whole = None if total is None else int(total)
        self._now(done=int(done), total=whole, rate=pace.rate, seconds_left=pace.seconds_left)

    def note(self, text: str) -> None:
        """Keep what the user should know."""
        self._now(note=text)

    def _check(self) -> None:
        if self._cancel.is_set():
            raise _CancelledError
