"""``WorkerEngine``: the engine's API over a worker process that may die without harm."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runtimes.api import EngineApi, T, TextEncoder
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, RequestError, WorkerError
from runtimes.grammars import check_request
from runtimes.models.modelfile import ModelFile
from runtimes.request import FinishReason, Request
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.stream import Stream
from runtimes.worker.process import Placement
from runtimes.worker.recovery import DeathLimit, Recovery
from runtimes.worker.supervisor import STEP_LIMIT_S, Answer, InFlightRequest, Supervisor
from runtimes.worker.wire import Call, Cancel, Reply, Submit

log = logging.getLogger(__name__)

_STATS_S = 0.2  # how long figures are waited for before the last ones have to do
_CALL_TRIES = 3


class WorkerEngine(TextEncoder, Supervisor, EngineApi):
    """An engine in a child process; this one loads no native library.

    When the process dies, every request that it had ends with an error that says of what, and is
    ``retryable``; the next request starts another (see runtimes.worker.recovery). Settings may then
    be safer, so that ``slots`` and ``context`` can become smaller, and ``stats`` counts anew. A
    step that takes longer than ``step_limit_s`` counts as a death, and so does a load that does
    nothing at all for as long, or 300 s if that is longer: one that computes or reads may take any
    time.

    Done callbacks run on the thread that delivers everything else: what waits for the engine raises
    RuntimeError there.
    """

    @classmethod
    def load(
        cls,
        path: str | Path,
        settings: RunnerSettings | None = None,
        scheduling: SchedulerSettings | None = None,
        *,
        step_limit_s: float = STEP_LIMIT_S,
        deaths: DeathLimit | None = None,
        begun: Callable[[WorkerEngine], None] | None = None,
        place: Placement | None = None,
    ) -> WorkerEngine:
        """Start a process that loads the model at ``path``. Processes run at ``place``, also those
        that are started later.

        ``begun`` is given the engine before it has loaded: another thread may end the loading with
        ``close``, and nothing else. Raises ModelError, RuntimeMissingError, OutOfMemoryError,
        WorkerError when no process can be started, or RequestError when it was closed meanwhile.
        Ctrl-C ends it at once.
        """
        path = Path(path).absolute()
        recovery = Recovery(path, settings or RunnerSettings(), deaths or DeathLimit())
        engine = cls(path, scheduling, recovery, place or Placement(), step_limit_s)
        try:
            if begun is not None:
                begun(engine)
            engine.start()
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
        return self._ready.stats.context

    @property
    def slots(self) -> int:
        """Requests that run at the same time."""
        return self._ready.stats.slots

    @property
    def vocab_size(self) -> int:
        """Ids from 0 to below this may be submitted."""
        return self._ready.vocab_size

    @property
    def pid(self) -> int | None:
        """The process that holds the model; None while there is none."""
        process = self._process
        return process.pid if process else None

    @property
    def deaths(self) -> int:
        """Processes of this engine that died so far."""
        return self._recovery.total

    def submit(self, request: Request) -> Stream:
        """See ``EngineApi.submit``: at once, also while a process is being started anew."""
        if not request.embed:
            self.model.require_writer()
        grammar = check_request(request, self.context, self.vocab_size)
        own = InFlightRequest(request, Stream(request.id, self.cancel))
        number = next(self._numbers)
        with self._lock:
            self._requests[number] = own  # before it is sent: the answer may be quick
            try:
                self._dispatch(Submit(number, request, grammar))
            except RequestError:
                del self._requests[number]
                raise
        return own.stream

    def cancel(self, request_id: str) -> None:
        """Stop a request; what it has so far becomes its completion. Unknown ids are ignored."""
        with self._lock:
            # A copy: the receiver takes out what is done.
            meant = {n: o for n, o in self._requests.copy().items() if o.request.id == request_id}
            for one in meant.values():
                one.cancelled = True
            if self._process is not None:
                self._process.send(Cancel(request_id))
                return
            self._held = [item for item in self._held if item.number not in meant]
            for number in meant:
                del self._requests[number]
        for one in meant.values():
            one.give_up(FinishReason.CANCELLED, None)

    def stats(self) -> EngineStats:
        """A snapshot of the figures; the last known ones when the process does not answer soon."""
        if self.pid is not None and not self._delivering:
            try:
                self._call(EngineApi.stats, timeout=_STATS_S, tries=1, start=False)
            except (IngotError, TimeoutError) as error:
                log.debug("no fresh figures: %s", error)
        return self._stats

    @property
    def adapters(self) -> frozenset[str]:
        """See ``EngineApi.adapters``."""
        return frozenset(self._adapters)

    def load_adapter(self, name: str, path: Path) -> None:
        """See ``EngineApi.load_adapter``; a process that is started later has it too."""
        path = Path(path).absolute()
        self._call(EngineApi.load_adapter, name, path, tries=1)
        self._adapters = {**self._adapters, name: path}

    def unload_adapter(self, name: str) -> None:
        """See ``EngineApi.unload_adapter``."""
        before = self._adapters
        if name not in before:
            raise RequestError(f"there is no adapter {name!r} to unload")
        self._adapters = {key: path for key, path in before.items() if key != name}
        try:
            self._call(EngineApi.unload_adapter, name, tries=1, start=False)
        except WorkerError:
            log.debug("the adapter %s went with its process", name)
        except RequestError:
            self._adapters = before
            raise

    def encoded(self, function: Callable[..., T], *arguments: Any) -> T:
        """See ``TextEncoder``."""
        found: T = self._call(TextEncoder.encoded, function, *arguments)
        return found

    def trim(self) -> int:
        """Drop every cached prefix; return how many bytes of keys and values that freed."""
        try:
            return self._call(EngineApi.trim, tries=1, start=False)
        except WorkerError:  # with the process went its caches
            return 0

    def save_session(self, tokens: Sequence[int], path: Path, adapter: str | None = None) -> int:
        """See ``EngineApi.save_session``."""
        path = Path(path).absolute()
        return self._call(EngineApi.save_session, list(tokens), path, adapter, tries=1)

    def load_session(self, path: Path, adapter: str | None = None) -> list[int]:
        """See ``EngineApi.load_session``."""
        return self._call(EngineApi.load_session, Path(path).absolute(), adapter)

    def _call(
        self,
        method: Callable[..., T],
        *arguments: Any,
        timeout: float | None = None,
        tries: int = _CALL_TRIES,
        start: bool = True,
    ) -> T:
        """Call the engine's method in the worker process; another one takes over where it dies.

        Without ``start``, WorkerError is raised when there is no process.
        """
        name = method.__name__
        if self._delivering:
            raise RuntimeError(f"{name} would wait for itself: this is a done callback")
        while True:
            reply: Answer = queue.SimpleQueue()
            number = next(self._numbers)
            try:
                with self._lock:
                    if self._process is None and not start:
                        raise WorkerError("there is no worker process")
                    self._calls[number] = reply  # before it is sent, as a request is
                    self._dispatch(Call(number, name, arguments))
                answer = reply.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError(f"no answer to {name} within {timeout} s") from None
            finally:
                self._calls.pop(number, None)
            if isinstance(answer, Reply):
                if answer.problem is not None:
                    raise answer.problem
                value: T = answer.value
                return value
            tries -= 1
            if not isinstance(answer, WorkerError) or tries == 0:
                raise answer
