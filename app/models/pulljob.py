"""A look at the hub or a download in a thread of its own, for screens that ask how it is."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.models.pulling import Offer, PullRequest, offers, pull
from quantize.hub.client import Hub, Patience
from quantize.progress.console import Reporter
from quantize.progress.pace import Pace
from runtimes.errors import IngotError

logger = logging.getLogger(__name__)


class _CancelledError(BaseException):
    """Leaves the transfer at the next piece; no ``except Exception`` on the way may keep it."""


@dataclass(frozen=True, slots=True)
class PullState:
    """How far it is; at the end with ``offers``, ``path``, ``error`` or ``cancelled``."""

    stage: str
    done: int  # bytes
    total: int | None  # None: not known yet
    rate: float | None  # bytes a second
    seconds_left: float | None
    note: str | None = None
    offers: tuple[Offer, ...] | None = None
    path: Path | None = None
    error: str | None = None
    cancelled: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return bool(self.cancelled or self.error or self.path) or self.offers is not None


@dataclass(frozen=True)
class _CancellableHub(Hub):
    """Does not try again once the download was cancelled."""

    check: Callable[[], None] = lambda: None

    def pause_after(self, error: Exception) -> float | None:
        self.check()
        return super().pause_after(error)


class PullJob(Reporter):
    """Brings ``request.what`` of a repository, or looks at what there is when that is None.

    Every method may be called from any thread and returns at once. What has arrived when it is
    cancelled or fails stays, and the next download of the same file resumes from there.
    """

    def __init__(self, request: PullRequest, hub: Hub | None = None) -> None:
        self.request = request
        patience = hub.patience if hub is not None else Patience()
        self._hub = _CancellableHub(patience, self._check)
        self._lock = threading.Lock()
        self._pace = Pace()
        self._stages: list[str] = []
        self._note: str | None = None
        self._cancel = threading.Event()
        self._ended: dict[str, Any] = {}
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
        with self._lock:
            ended = dict(self._ended)
            if self._cancel.is_set() and not ended:
                ended = {"cancelled": True}
            return PullState(
                self._stages[-1] if self._stages else "",
                int(self._pace.done),
                None if self._pace.total is None else int(self._pace.total),
                self._pace.rate,
                self._pace.seconds_left,
                self._note,
                **ended,
            )

    def _run(self) -> None:
        try:
            if self.request.what is None:
                ended: dict[str, Any] = {
                    "offers": tuple(offers(self.request.name, self, self._hub))
                }
            else:
                ended = {"path": pull(self.request, self, self._hub)}
        except _CancelledError:
            ended = {"cancelled": True}
        except (IngotError, OSError) as error:
            ended = {"error": str(error) or type(error).__name__}
        except Exception as error:
            logger.exception("the download failed")
            ended = {"error": f"internal error: {type(error).__name__}: {error}"}
        with self._lock:
            self._ended = ended

    # What it is told on its thread, as every quantize.progress.console.Reporter

    @contextlib.contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Begin a part of the work."""
        self._check()
        with self._lock:
            self._stages.append(text)
        try:
            yield
        finally:
            with self._lock:
                self._stages.pop()

    def advance(self, done: float, total: float | None, unit: str) -> None:
        """Note how many bytes there are."""
        self._check()
        with self._lock:
            self._pace.update(done, total, unit)

    def note(self, text: str) -> None:
        """Keep what the user should know."""
        with self._lock:
            self._note = text

    def _check(self) -> None:
        if self._cancel.is_set():
            raise _CancelledError
