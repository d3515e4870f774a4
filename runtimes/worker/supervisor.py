"""Keeps a worker process at hand: starts it, starts another when it has died, ends it."""

import errno
import itertools
import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtimes import own
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, ModelError, OutOfMemoryError, RequestError, WorkerError
from runtimes.request import Chunk, Completion, FinishReason, Request, Timings, Usage
from runtimes.settings import SchedulerSettings
from runtimes.stream import Stream
from runtimes.worker.process import LoadMonitor, Outcome, Placement, Watchdog, WorkerProcess
from runtimes.worker.recovery import Cause, Death, Recovery
from runtimes.worker.wire import (
    Call,
    Close,
    Done,
    Load,
    Pulse,
    Ready,
    Refused,
    Reply,
    Submit,
    start_thread,
)

log = logging.getLogger(__name__)

STEP_LIMIT = "INGOT_STEP_LIMIT_S"  # the command line's environment variable for step_limit_s
STEP_LIMIT_S = 120.0
LOAD_LIMIT_S = 300.0  # without any sign of life
_CLOSE_S = 3.0  # for the step that runs when an engine is closed without draining


Answer = queue.SimpleQueue[Reply | Exception]


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request, and what has come of it so far. ``cancelled`` means that nobody wants more."""

    request: Request
    stream: Stream
    submitted: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    chunks: list[Chunk] = field(default_factory=list)

    def take(self, chunk: Chunk) -> None:
        """Hand on a chunk."""
        self.chunks.append(chunk)
        self.stream.put(chunk)

    def give_up(self, reason: FinishReason, error: str | None, *, retryable: bool = False) -> None:
        """End it from this side, with the text that has come."""
        if self.cancelled:
            reason, error, retryable = FinishReason.CANCELLED, None, False
        now = time.monotonic()
        first = self.stream.first_at or now
        waited = first - self.submitted
        own = [chunk for chunk in self.chunks if chunk.index == 0]
        tokens = tuple(token for chunk in own for token in chunk.token_ids)
        sizes = len(self.request.prompt), len(tokens)
        done = Completion(
            self.request.id,
            "".join(chunk.text for chunk in own if not chunk.thought),
            tokens,
            reason,
            Usage(*sizes),
            Timings(0.0, waited, waited, now - first, now - self.submitted, *sizes),
            error=error,
            retryable=retryable,
            thought="".join(chunk.text for chunk in own if chunk.thought) or None,
        )
        self.stream.finish(done)


Lost = list[InFlightRequest | Answer]


def fail(lost: Lost, reason: FinishReason, error: Exception, *, retryable: bool = False) -> None:
    """End what was lost; a request that was not cancelled says the error."""
    failed = reason is FinishReason.ERROR
    for one in lost:
        if isinstance(one, InFlightRequest):
            one.give_up(reason, str(error) if failed else None, retryable=failed and retryable)
        else:
            one.put(error)


class Supervisor:
    """One process at a time, started when there is something for it; and what it was given."""

    def __init__(
        self,
        path: Path,
        scheduling: SchedulerSettings | None,
        recovery: Recovery,
        place: Placement,
        step_limit_s: float,
    ) -> None:
        """A process is ended when a step takes longer than ``step_limit_s``, one that loads when it
        does nothing for as long and for ``LOAD_LIMIT_S``."""
        self._path, self._scheduling, self._recovery = path, scheduling, recovery
        self._place, self._load_limit_s = place, max(LOAD_LIMIT_S, step_limit_s)
        # Guards which process is in use, and with it what was given to it.
        self._lock = threading.Lock()
        self._requests: dict[int, InFlightRequest] = {}
        self._calls: dict[int, Answer] = {}
        self._numbers = itertools.count()  # of both
        self._held: list[Submit | Call] = []  # until a process is there
        self._adapters: dict[str, Path] = {}  # every process is to have them
        self._process: WorkerProcess | None = None  # ready
        self._ready: Ready  # what the last process said of itself
        self._stats: EngineStats
        self._closing = self._draining = False
        self._coming: WorkerProcess | None = None  # loading
        self._starter: threading.Thread | None = None
        self._local = threading.local()
        self._watchdog = Watchdog(step_limit_s, self._look, self._hangs)

    @property
    def _delivering(self) -> bool:
        """Whether this is the thread that hands out what comes, which must not wait for more."""
        return hasattr(self._local, "delivering")

    def _dispatch(self, item: Submit | Call) -> None:
        """Send it, or hold it and start a process. With the lock held. Raises RequestError."""
        if self._closing:
            raise RequestError("the engine is closed")
        if self._process is not None:
            self._process.send(item)
        else:
            self._held.append(item)
            self._starter = self._starter or start_thread("ingot-worker-start", self._restart)
        self._watchdog.work()

    def close(self, *, drain: bool = False) -> None:
        """End the engine: finish what was submitted (``drain``) or cancel it. Idempotent."""
        with self._lock:
            first, self._closing = not self._closing, True
            self._draining = self._draining or (drain and first)
            starter, process = self._starter, self._process
            if self._coming is not None and not self._draining:
                self._coming.kill()
        self._watchdog.work()  # it may hang though it has nothing left to do
        if self._delivering:
            if process is not None:
                process.send(Close(drain=False))
            return
        if starter is not None and starter is not threading.current_thread():
            starter.join()
        self._end_process()
        self._watchdog.stop()
        with self._lock:
            left = self._lose()
        fail(left, FinishReason.CANCELLED, RequestError("the engine is closed"))

    def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        process.send(Close(self._draining))
        try:
            # A drained engine may take as long as its requests do; the watchdog sees to hangs.
            if not process.ended.wait(None if self._draining else _CLOSE_S):
                log.info("the worker process is still in a step; it is killed")
        finally:
            process.kill()
            process.ended.wait(_CLOSE_S)

    def start(self, *, restart: bool = False) -> None:
        """Load the model in a new process, with safer settings where it dies of it.

        Raises ModelError, RuntimeMissingError, OutOfMemoryError, or WorkerError when the system has
        no room for another process.
        """
        while True:
            process = self._new_process()
            try:
                outcome = self._outcome(process)
                if isinstance(outcome, Ready) and self._adopt(process, outcome):
                    return
            except BaseException:  # Ctrl-C while it loads
                process.kill()
                raise
            if isinstance(outcome, Ready):  # dead since
                outcome = process.outcome.get()
            if self._closing and not self._draining:
                raise RequestError("the engine is closed")
            if isinstance(outcome, Refused):
                if not process.ended.wait(_CLOSE_S):
                    process.kill()
                too_big = isinstance(outcome.problem, OutOfMemoryError)
                if restart and too_big and self._recovery.too_big():
                    continue
                raise outcome.problem
            assert isinstance(outcome, Death)
            if not self._recovery.died(outcome, None):
                short = outcome.cause in (Cause.MEMORY, Cause.SCARCE)
                kind = OutOfMemoryError if short else ModelError
                raise kind(f"{self._path} cannot be loaded: the worker process {outcome.text}")
            log.warning("the worker process %s while it loaded %s", outcome.text, self._path.name)

    def _new_process(self) -> WorkerProcess:
        if refusal := self._recovery.refusal():
            raise ModelError(refusal)
        names = ("", own("runtimes"), own("runtimes.engine"))
        level = min(logging.getLogger(name).getEffectiveLevel() for name in names)
        settings = self._recovery.settings()
        order = Load(self._path, settings, self._scheduling, level, self._adapters)
        try:
            process = WorkerProcess(order, self._place, self._received, self._died)
        except OSError as error:
            kind = OutOfMemoryError if error.errno == errno.ENOMEM else WorkerError
            raise kind(f"a worker process could not be started: {error}") from error
        with self._lock:
            self._coming = process
            if self._closing and not self._draining:
                process.kill()
        return process

    def _outcome(self, process: WorkerProcess) -> Outcome:
        """Wait for the outcome of a process that loads; end one that does nothing."""
        monitor = LoadMonitor(process.pid, self._load_limit_s)
        while (outcome := monitor.wait(process.outcome)) is None:
            process.oom.look()
            if monitor.problem:
                process.give_up(f"{monitor.problem} while it loaded the model")
        return outcome

    def _adopt(self, process: WorkerProcess, ready: Ready) -> bool:
        """Make a process that has loaded the one in use; False when it has died since."""
        with self._lock:
            self._coming = None
            if process.death is not None:
                return False
            self._ready, self._stats = ready, ready.stats
            self._watchdog.work()
            self._process = process
            for item in self._held:
                process.send(item)
            self._held = []
        return True

    def _restart(self) -> None:
        problem, begin = None, time.monotonic()
        try:
            self.start(restart=True)
            took = time.monotonic() - begin
            log.info("a new worker process has loaded %s in %.1f s", self._path.name, took)
        except Exception as error:
            problem = error
            if not isinstance(error, IngotError):
                log.exception("a worker process could not be started")
                problem = WorkerError(f"a worker process could not be started: {error}")
        with self._lock:
            self._starter = None
            if problem is None:
                return
            self._held = []
            lost = self._lose()
        reason = FinishReason.CANCELLED if self._closing else FinishReason.ERROR
        fail(lost, reason, problem)

    # For the watchdog: on its thread.

    def _look(self) -> bool:
        with self._lock:  # so that a process is not missed that is being adopted
            process = self._process
            if process is None or not (self._requests or self._calls or self._draining):
                return False
        process.oom.look()
        return True

    def _hangs(self, limit_s: float) -> None:
        if (process := self._process) is not None:
            process.give_up(f"a step took longer than {limit_s:g} s ({STEP_LIMIT} is the limit)")

    # On threads of a process.

    def _received(self, process: WorkerProcess, items: list[Any]) -> None:
        self._local.delivering = True
        for item in items:
            if isinstance(item, (Ready, Refused)):
                process.outcome.put(item)
            else:
                self._take(item)

    def _take(self, item: Any) -> None:
        match item:
            case (number, *fields) if type(item) is tuple:  # what comes most
                if (request := self._requests.get(number)) is not None:
                    request.take(Chunk(*fields))
                    self._watchdog.moved()
            case Done(number, completion):
                self._watchdog.moved()
                if (request := self._requests.pop(number, None)) is not None:
                    request.stream.finish(completion)
            case Pulse(stats):
                self._note(stats)
            case Reply(number, value):
                if isinstance(value, EngineStats):
                    self._note(value)
                elif not self._requests:
                    self._watchdog.moved()
                if (waiting := self._calls.get(number)) is not None:
                    waiting.put(item)
            case logging.LogRecord():
                logger = logging.getLogger(item.name)
                if logger.isEnabledFor(item.levelno):
                    logger.handle(item)

    def _note(self, stats: EngineStats) -> None:
        before, self._stats = self._stats.steps, stats
        if stats.steps != before:
            self._watchdog.moved()

    def _lose(self) -> Lost:
        """Give up everything; return it. With the lock held."""
        lost: Lost = [*self._requests.values(), *self._calls.values()]
        self._requests, self._calls = {}, {}
        return lost

    def _died(self, process: WorkerProcess) -> None:
        death = process.death
        assert death is not None
        with self._lock:
            if process is not self._process:
                process.outcome.put(death)
                return
            self._process = None
            lost = self._lose()
            if not self._closing:
                log.warning("the worker process %s; running requests: %d", death.text, len(lost))
                self._recovery.died(death, self._ready)
        cancelled = self._closing and not self._draining
        reason = FinishReason.CANCELLED if cancelled else FinishReason.ERROR
        fail(lost, reason, WorkerError(f"the worker process {death.text}"), retryable=True)
