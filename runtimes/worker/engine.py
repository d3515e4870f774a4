"""``WorkerEngine``: the engine's API over a worker process that may die without harm."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from runtimes.chat import Message
from runtimes.errors import IngotError, ModelError, OutOfMemoryError, RequestError
from runtimes.metrics import EngineStats
from runtimes.modelfile import ModelFile
from runtimes.request import Completion, FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.stream import Stream
from runtimes.worker.flights import Flight, give_up_all
from runtimes.worker.problems import WorkerError, unpack
from runtimes.worker.process import Cause, Death, WorkerProcess
from runtimes.worker.recovery import DeathLimit, Recovery
from runtimes.worker.watchdog import Watchdog
from runtimes.worker.wire import (
    Call,
    Cancel,
    Close,
    Done,
    Load,
    LogLine,
    Pulse,
    Ready,
    Refused,
    Reply,
    Submit,
)

log = logging.getLogger(__name__)

STEP_LIMIT_S = 120.0
_STATS_S = 0.2  # how long figures are waited for before the last ones have to do
_CLOSE_S = 3.0  # for the step that runs when an engine is closed without draining
_CALL_TRIES = 3

_Answer = queue.SimpleQueue[Reply | IngotError]


class WorkerEngine:
    """Implements ``runtimes.api.EngineApi`` in a child process; this one loads no native library.

    When the process dies, every request that it had ends with an error that says of what, and is
    ``retryable``; the next request starts another (see runtimes.worker.recovery). Settings may then
    be safer, so that ``slots`` and ``context`` can become smaller, and ``stats`` counts anew. A
    step that takes longer than ``step_limit_s`` counts as a death.

    Requests that only the engine's own checks refuse end with an error instead of raising it. Done
    callbacks run on the thread that delivers everything else: what waits for the engine raises
    RuntimeError there.
    """

    def __init__(
        self, path: Path, scheduling: SchedulerSettings | None, recovery: Recovery, limit_s: float
    ) -> None:
        """Used by ``load``."""
        self._path, self._scheduling, self._recovery = path, scheduling, recovery
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._flights: dict[int, Flight] = {}
        self._calls: dict[int, _Answer] = {}
        self._held: list[Submit | Call] = []  # until a process is there
        self._process: WorkerProcess | None = None  # ready
        self._coming: WorkerProcess | None = None  # loading
        self._starter: threading.Thread | None = None
        self._closing = self._draining = False
        self._steps = 0  # of the process in use, as far as is known
        self._local = threading.local()
        self._watchdog = Watchdog(limit_s, self._busy, self._hangs)
        self._ready: Ready
        self._stats: EngineStats

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: RunnerSettings | None = None,
        scheduling: SchedulerSettings | None = None,
        *,
        step_limit_s: float = STEP_LIMIT_S,
        deaths: DeathLimit | None = None,
        again: bool = False,
    ) -> WorkerEngine:
        """Start a process that loads the model at ``path``; ``again`` forgets safer settings.

        Raises ModelError, RuntimeMissingError or OutOfMemoryError. Ctrl-C ends it at once.
        """
        path = Path(path).absolute()
        recovery = Recovery(path, settings or RunnerSettings(), deaths or DeathLimit(), again=again)
        engine = cls(path, scheduling, recovery, step_limit_s)
        try:
            engine._start()
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def model(self) -> ModelFile:
        """The loaded file."""
        return self._ready.model

    @property
    def context(self) -> int:
        """Tokens that one request may hold, prompt and completion together."""
        return self._ready.context

    @property
    def slots(self) -> int:
        """Requests that run at the same time."""
        return self._ready.slots

    @property
    def vocab_size(self) -> int:
        """Ids from 0 to below this may be submitted."""
        return self._ready.vocab_size

    @property
    def pid(self) -> int | None:
        """The worker process; None while there is none."""
        process = self._process
        return process.pid if process else None

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text, with the BOS token if the model wants one."""
        ids: list[int] = self._call("encode", text)
        return ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation through the model's chat template; raises RequestError."""
        ids: list[int] = self._call("encode_chat", [dict(message) for message in messages])
        return ids

    def submit(self, request: Request) -> Stream:
        """Queue a request; returns at once, also while a process is being started anew.

        Raises RequestError when the prompt leaves no room for a token, a token id is out of range,
        or the engine is closed.
        """
        if len(request.prompt) >= self.context:
            raise RequestError(
                f"the prompt has {len(request.prompt):,} tokens; the context holds "
                f"{self.context:,} and one must be left for the answer"
            )
        if min(request.prompt) < 0 or max(request.prompt) >= self.vocab_size:
            raise RequestError(f"the prompt has a token id outside 0..{self.vocab_size - 1}")
        flight = Flight(request, Stream(request.id, self.cancel))
        with self._lock:
            self._refuse_when_closing()
            number = next(self._numbers)
            self._flights[number] = flight
            self._dispatch(Submit(number, request))
        self._watchdog.work()
        return flight.stream

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Run a batch of token prompts to the end; completions in the order of the prompts."""
        params = params or SamplingParams()
        streams = [self.submit(Request(list(prompt), params)) for prompt in prompts]
        return [stream.result() for stream in streams]

    def cancel(self, request_id: str) -> None:
        """Stop a request; what it has so far becomes its completion. Unknown ids are ignored."""
        with self._lock:
            if self._process is not None:
                self._process.send(Cancel(request_id))
                return
            held, self._held = self._held, []
            dropped = []
            for item in held:
                if isinstance(item, Submit) and item.request.id == request_id:
                    dropped.append(self._flights.pop(item.number))
                else:
                    self._held.append(item)
        give_up_all(dropped, FinishReason.CANCELLED, None)

    def stats(self) -> EngineStats:
        """A snapshot of the figures; the last known ones when the process does not answer soon."""
        if self._process is not None and not self._delivering:
            try:
                self._call("stats", timeout=_STATS_S, tries=1)
            except (IngotError, TimeoutError) as error:
                log.debug("no fresh figures: %s", error)
        return self._stats

    def trim(self) -> int:
        """Drop every cached prefix; return how many bytes of keys and values that freed."""
        if self._process is None:
            return 0
        freed: int = self._call("trim")
        return freed

    def save_session(self, tokens: Sequence[int], path: Path) -> int:
        """Write the keys and values of the longest known prefix of ``tokens`` to ``path``.

        Returns its length. Raises RequestError when nothing of it is cached.
        """
        length: int = self._call("save_session", list(tokens), Path(path).absolute(), tries=1)
        return length

    def load_session(self, path: Path) -> list[int]:
        """Put a saved prefix into the cache; return its tokens. Raises ModelError."""
        tokens: list[int] = self._call("load_session", Path(path).absolute())
        return tokens

    def close(self, *, drain: bool = False) -> None:
        """End the engine: finish what was submitted (``drain``) or cancel it. Idempotent."""
        with self._lock:
            first, self._closing = not self._closing, True
            self._draining = self._draining or (drain and first)
            starter, process = self._starter, self._process
            if self._coming is not None and not self._draining:
                self._coming.kill()
        if self._delivering:
            if process is not None:
                process.send(Close(drain=False))
            return
        if starter is not None and starter is not threading.current_thread():
            starter.join()
        self._end_process()
        self._watchdog.stop()
        with self._lock:
            left, self._flights = list(self._flights.values()), {}
        give_up_all(left, FinishReason.CANCELLED, None)

    def __enter__(self) -> WorkerEngine:
        """The engine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close without draining."""
        self.close()

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

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise RequestError("the engine is closed")

    def _dispatch(self, item: Submit | Call) -> None:
        """Send it, or hold it and start a process. With the lock held."""
        if self._process is not None:
            self._process.send(item)
            return
        self._held.append(item)
        if self._starter is None:
            self._starter = threading.Thread(
                target=self._restart, name="ingot-worker-start", daemon=True
            )
            self._starter.start()

    def _call(
        self, method: str, *arguments: Any, timeout: float | None = None, tries: int = _CALL_TRIES
    ) -> Any:
        """Call the engine's method in the worker process; another one takes over where it dies."""
        if self._delivering:
            raise RuntimeError(f"{method} would wait for itself: this is a done callback")
        while True:
            reply: _Answer = queue.SimpleQueue()
            with self._lock:
                self._refuse_when_closing()
                number = next(self._numbers)
                self._calls[number] = reply
                self._dispatch(Call(number, method, arguments))
            self._watchdog.work()
            try:
                answer = reply.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError(f"no answer to {method} within {timeout} s") from None
            finally:
                self._calls.pop(number, None)
            if isinstance(answer, Reply):
                if answer.problem is not None:
                    raise unpack(answer.problem)
                return answer.value
            tries -= 1
            if not isinstance(answer, WorkerError) or tries == 0:
                raise answer

    # Starting a process.

    def _start(self, *, restart: bool = False) -> None:
        """Load the model in a new process, with safer settings where it dies of it.

        Raises ModelError, RuntimeMissingError or OutOfMemoryError.
        """
        while True:
            process = self._new_process()
            try:
                outcome = process.outcome.get()
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
                process.ended.wait(_CLOSE_S)
                error = unpack(outcome.problem)
                if restart and isinstance(error, OutOfMemoryError) and self._recovery.too_big():
                    continue
                raise error
            assert isinstance(outcome, Death)
            log.info("the worker process %s while it loaded %s", outcome.text, self._path.name)
            if not self._recovery.died(outcome, None):
                kind = OutOfMemoryError if outcome.cause is Cause.MEMORY else ModelError
                raise kind(f"{self._path} cannot be loaded: the worker process {outcome.text}")

    def _new_process(self) -> WorkerProcess:
        refusal = self._recovery.refusal()
        if refusal is not None:
            raise ModelError(refusal)
        level = min(logging.getLogger(name).getEffectiveLevel() for name in ("", "runtimes"))
        order = Load(str(self._path), self._recovery.settings(), self._scheduling, level)
        process = WorkerProcess(order, self)
        with self._lock:
            self._coming = process
            if self._closing and not self._draining:
                process.kill()
        return process

    def _adopt(self, process: WorkerProcess, ready: Ready) -> bool:
        """Make a process that has loaded the one in use; False when it has died since."""
        with self._lock:
            self._coming = None
            if process.death is not None:
                return False
            self._ready, self._stats = ready, ready.stats
            self._process = process
            held, self._held = self._held, []
            for item in held:
                process.send(item)
        self._watchdog.work()
        return True

    def _restart(self) -> None:
        problem: IngotError | None = None
        try:
            self._start(restart=True)
        except IngotError as error:
            problem = error
        except Exception as error:
            log.exception("a worker process could not be started")
            problem = WorkerError(f"a worker process could not be started: {error}")
        with self._lock:
            self._starter = None
            if problem is None:
                return
            self._held = []
            flights, self._flights = list(self._flights.values()), {}
            calls = list(self._calls.values())
        reason = FinishReason.CANCELLED if self._closing else FinishReason.ERROR
        self._fail(flights, calls, reason, problem, retryable=False)

    # The listener of a process: on its threads.

    @property
    def _delivering(self) -> bool:
        """Whether this is the thread that hands out what comes, which must not wait for more."""
        return bool(getattr(self._local, "delivering", False))

    def received(self, process: WorkerProcess, items: list[Any]) -> None:
        """See runtimes.worker.process.Listener."""
        self._local.delivering = True
        flights = self._flights
        for item in items:
            if type(item) is tuple:
                flight = flights.get(item[0])
                if flight is not None:
                    flight.take(item)
                    self._watchdog.moved()
            else:
                self._take(process, item)

    def _take(self, process: WorkerProcess, item: object) -> None:
        match item:
            case Done(number, completion):
                self._watchdog.moved()
                flight = self._flights.pop(number, None)
                if flight is not None:
                    flight.stream.finish(completion)
            case Pulse(stats):
                self._note(stats)
            case Reply(number, value):
                if isinstance(value, EngineStats):
                    self._note(value)
                elif not self._flights:
                    self._watchdog.moved()
                waiting = self._calls.get(number)
                if waiting is not None:
                    waiting.put(item)
            case LogLine(name, level, text):
                logger = logging.getLogger(name)
                if logger.isEnabledFor(level):
                    logger.log(level, "%s", text)
            case Ready() | Refused():
                process.outcome.put(item)

    def _note(self, stats: EngineStats) -> None:
        self._stats = stats
        if stats.steps != self._steps:
            self._steps = stats.steps
            self._watchdog.moved()

    def died(self, process: WorkerProcess) -> None:
        """See runtimes.worker.process.Listener."""
        death = process.death
        assert death is not None
        with self._lock:
            if process is not self._process:
                process.outcome.put(death)
                return
            self._process = None
            flights, self._flights = list(self._flights.values()), {}
            calls = list(self._calls.values())
            if not self._closing:
                log.warning(
                    "the worker process %s; %d requests failed with it", death.text, len(flights)
                )
                self._recovery.died(death, self._ready)
        reason, error = FinishReason.ERROR, WorkerError(f"the worker process {death.text}")
        if self._closing and not self._draining:
            reason = FinishReason.CANCELLED
        self._fail(flights, calls, reason, error, retryable=True)

    def _fail(
        self,
        flights: list[Flight],
        calls: list[_Answer],
        reason: FinishReason,
        error: IngotError,
        *,
        retryable: bool,
    ) -> None:
        failed = reason is FinishReason.ERROR
        give_up_all(flights, reason, str(error) if failed else None, retryable=failed and retryable)
        for waiting in calls:
            waiting.put(error)

    # For the watchdog: on its thread.

    def _busy(self) -> bool:
        return self._process is not None and bool(self._flights or self._calls)

    def _hangs(self, limit_s: float) -> None:
        process = self._process
        if process is not None:
            process.kill(hang=f"a step took longer than {limit_s:g} s")
