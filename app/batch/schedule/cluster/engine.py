"""``RayEngine``: an engine on some node of a Ray cluster, which may be lost without harm."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

from app.batch.schedule.cluster.actor import LoadedEngine
from runtimes.chat import Message
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, RequestError, WorkerError
from runtimes.grammars import check_request
from runtimes.models.modelfile import ModelFile
from runtimes.request import Completion, FinishReason, Request
from runtimes.stream import Stream
from runtimes.worker.supervisor import InFlightRequest

log = logging.getLogger(__name__)

_STATS_S = 0.2  # how long figures are waited for before the last ones have to do


@dataclass(frozen=True, slots=True)
class _Incarnation:
    """An actor that has loaded the model; ``number`` counts those of one engine from 1."""

    number: int
    actor: Any
    loaded: LoadedEngine


class RayEngine:
    """A ``RowEngine`` in a Ray actor.

    When the actor dies or its node is lost, every request that it had ends with an error that is
    ``retryable``. The next ``encode`` starts another actor, wherever the cluster has room, and
    waits for it: nothing but ``close`` ends that, since a node may come back at any time. ``pid``
    is the number of the actor in use.
    """

    def __init__(self, name: str, start: Callable[[], Any]) -> None:
        """``start`` makes an actor and returns its handle at once."""
        self.name = name
        self._start = start
        self._lock = threading.Lock()
        self._starting = threading.Lock()  # held while an actor is started
        self._closed = False
        self._coming: Any = None
        self._here: _Incarnation | None = None
        self._loaded: LoadedEngine  # by the last actor
        self._stats: EngineStats
        self._asked: Future[Any] | None = None
        self._count = 0
        # Ray calls back on the thread that serves all of its own work: nothing may wait there.
        self._landing = ThreadPoolExecutor(1, f"ingot-{name}")

    @property
    def model(self) -> ModelFile:
        """See RowEngine."""
        return self._loaded.model

    @property
    def context(self) -> int:
        """See RowEngine."""
        return self._loaded.context

    @property
    def slots(self) -> int:
        """See RowEngine."""
        return self._loaded.slots

    @property
    def pid(self) -> int | None:
        """See RowEngine."""
        here = self._here
        return None if here is None else here.number

    def where(self) -> str:
        """The node of the last actor."""
        return f"node {self._loaded.node}"

    def begin(self) -> Any:
        """Make an actor; return a reference to what ``finish`` takes."""
        with self._lock:
            self._check_open()
            self._coming = self._start()
            return self._coming.load.remote()

    def finish(self, answer: LoadedEngine | IngotError) -> _Incarnation:
        """Take the actor into use, or raise what is wrong with it."""
        loaded: LoadedEngine = _checked(answer)
        with self._lock:
            self._check_open()
            self._count += 1
            here = self._here = _Incarnation(self._count, self._coming, loaded)
            self._coming = None
            self._loaded, self._stats, self._asked = loaded, loaded.stats, None
            return here

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the engine is closed")

    def encode(self, text: str) -> list[int]:
        """See RowEngine. Raises WorkerError when the actor dies of it."""
        ids: list[int] = self._call("encode", text)
        return ids

    def encode_chat(
        self,
        messages: Sequence[Message],
        template: str | None = None,
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """See RowEngine; raises as ``encode``."""
        said = [dict(message) for message in messages]
        ids: list[int] = self._call("encode_chat", said, template, tools, variables)
        return ids

    def encode_continuation(
        self,
        context: str | Sequence[Message],
        continuation: str,
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[list[int], int]:
        """See RowEngine; raises as ``encode``."""
        said = context if isinstance(context, str) else [dict(message) for message in context]
        found: tuple[list[int], int] = self._call(
            "encode_continuation", said, continuation, variables
        )
        return found

    def submit(self, request: Request) -> Stream:
        """See RowEngine. Nothing streams: the completion comes whole."""
        check_request(request, self.context, self._loaded.vocab_size)
        here = self._here
        stream = Stream(request.id, self.cancel)
        in_flight = InFlightRequest(request, stream)
        if here is None:
            in_flight.give_up(FinishReason.ERROR, f"{self.name} is gone", retryable=True)
            return stream
        future = here.actor.ask.remote(request).future()
        future.add_done_callback(
            lambda done: self._landing.submit(self._land, here, in_flight, done)
        )
        return stream

    def cancel(self, request_id: str) -> None:
        """See RowEngine."""
        if (here := self._here) is not None:
            here.actor.cancel.remote(request_id)

    def stats(self) -> EngineStats:
        """See RowEngine; the last known figures when the actor does not answer soon."""
        here = self._here
        late = self._asked is not None and not self._asked.done()
        if here is not None and not late:
            self._asked = here.actor.call.remote("stats").future()
            try:
                self._stats = _checked(self._asked.result(_STATS_S))
            except FutureTimeoutError:
                log.debug("%s: no fresh figures", self.name)
            except Exception as error:
                log.debug("%s: no fresh figures: %s", self.name, error)
        return self._stats

    def close(self) -> None:
        """End the actor, whatever it does."""
        import ray

        with self._lock:
            self._closed = True
            actors = [self._coming, self._here.actor if self._here else None]
            self._here = None
        for actor in filter(None, actors):
            ray.kill(actor)

    def _call(self, method: str, *arguments: Any) -> Any:
        import ray

        here = self._here or self._restarted()
        try:
            return _checked(ray.get(here.actor.call.remote(method, *arguments)))
        except ray.exceptions.RayActorError as error:
            self._died(here)
            raise WorkerError(f"{self.name} on {self.where()} is gone") from error

    def _land(self, here: _Incarnation, in_flight: InFlightRequest, done: Future[Any]) -> None:
        """A request has ended."""
        import ray

        try:
            error = done.exception()
            if error is None:
                answer: Completion | IngotError = done.result()
                if isinstance(answer, Completion):
                    in_flight.stream.finish(answer)
                else:
                    in_flight.give_up(FinishReason.ERROR, str(answer))
                return
            lost, raised = ray.exceptions.RayError, ray.exceptions.RayTaskError
            gone = isinstance(error, lost) and not isinstance(error, raised)
            if gone:
                self._died(here)
            if self._closed:
                in_flight.give_up(FinishReason.CANCELLED, None)
                return
            text = f"{self.name} on node {here.loaded.node} is gone" if gone else str(error)
            in_flight.give_up(FinishReason.ERROR, text, retryable=gone)
        except Exception:
            log.exception("%s: an answer was lost", self.name)

    def _died(self, here: _Incarnation) -> None:
        """Take an actor out of use; it may be alive and out of reach."""
        import ray

        with self._lock:
            if self._here is not here:
                return
            self._here = None
            if self._closed:
                return
        log.warning("%s on node %s is gone; another is started", self.name, here.loaded.node)
        ray.kill(here.actor)

    def _restarted(self) -> _Incarnation:
        """A new actor, once it has loaded the model. Raises WorkerError if it is lost before."""
        import ray

        with self._starting:
            try:
                return self._here or self.finish(ray.get(self.begin()))
            except ray.exceptions.RayActorError as error:
                raise WorkerError(f"{self.name} was lost while it loaded: {error}") from error


def _checked(answer: Any) -> Any:
    """What an actor answered. Raises the problem that it sent."""
    if isinstance(answer, IngotError):
        raise answer
    return answer
