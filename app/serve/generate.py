"""One request to a model: room for it, its tokens, the engine's stream, and its end whatever the
client does."""

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.openai.answer import Answer
from app.openai.prepare import Prepared, prepare
from app.openai.result import result
from app.openai.task import Task
from app.openai.tool_parser import ContentDelta, Delta, ThoughtDelta
from app.openai.validation import Given, InputError, Problem, require_object
from app.prompts import require_short
from app.serve.errors import HttpError, problem_error, shutting_down
from app.serve.pool import MOST_SLOTS, Loads, ModelPool, Served
from runtimes.api import EngineApi
from runtimes.checks import UNFOLLOWED
from runtimes.request import Completion, FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.stream import Stream

_Value = TypeVar("_Value")

# Threads of each model that make tokens, and of each other kind of work that may have to wait: a
# worker that restarts, or a load, must not hold up requests for other models.
_THREADS = 32
_PROBLEMS = {
    FinishReason.DEADLINE: "timeout",
    FinishReason.ERROR: "engine_error",
    FinishReason.CANCELLED: "shutting_down",
}


@dataclass(slots=True)
class Generation:
    """A request that was submitted. ``close`` it in any case."""

    served: Served
    request: Request
    task: Task
    prepared: Prepared
    stream: Stream
    held: ExitStack = field(default_factory=ExitStack)  # what ends with it
    completion: Completion | None = None

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Text and calls of tools as they come, each with the number of its sample."""
        parsers = [self.prepared.form.parser() for _ in range(self.request.params.n)]
        async for chunk in self.stream:
            parser = parsers[chunk.index]
            if chunk.thought:
                yield chunk.index, ThoughtDelta(chunk.text)
            elif parser is not None:
                for delta in parser.feed(chunk.text):
                    yield chunk.index, delta
            elif chunk.text:
                yield chunk.index, ContentDelta(chunk.text)
        for index, parser in enumerate(parsers):
            for delta in parser.end() if parser is not None else ():
                yield index, delta

    async def finished(self) -> Completion:
        """The end of it. Raises HttpError where there is no answer, or not all of it."""
        completion = self.completion = await self.stream
        _check(completion)
        return completion

    async def answer(self) -> Answer:
        """Return the finished answer. Raises as ``finished``."""
        found = await self.finished()
        return result(self.task, [self.request], [found], self.prepared.form.parser)

    def close(self) -> None:
        """End it, if it still runs, and let others have its place. Idempotent."""
        self.held.close()


class Generator:
    """Submits requests to the models of a pool, so many at a time. What waits for a model to load
    takes no thread. All methods but ``idle`` and ``running`` are for the event loop's thread."""

    def __init__(self, pool: ModelPool, defaults: SamplingParams, queue: int) -> None:
        """``queue``: how many answers of a model may wait for a slot."""
        self.pool, self.defaults, self._queue = pool, defaults, queue
        self.at_end: list[Callable[[], None]] = []  # of the server
        self.done: list[Callable[[Generation, Completion], None]] = []  # told of each that had text
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        self._seconds: dict[str, float] = {}  # that requests took lately, averaged
        self._limiters = defaultdict[str, CapacityLimiter](partial(CapacityLimiter, _THREADS))
        self._loads = Loads(pool)
        self._begun: dict[int, Generation] = {}
        self._closing = False

    def idle(self) -> list[tuple[EngineApi, RunnerSettings]]:
        """Loaded models without a request, and what they were loaded with."""
        loaded = self.pool.loaded().items()
        free = [one for name, one in loaded if not self.running(name)]
        return [(one.engine, one.choice.settings) for one in free]

    def running(self, name: str) -> int:
        """Answers of a model that run or wait."""
        with self._lock:
            return self._running.get(name, 0)

    async def in_thread(self, work: Callable[[], _Value], kind: str = "") -> _Value:
        """The result of ``work`` on a thread, for what may wait for a model. ``kind`` is the name
        of that model, or anything else whose works wait for each other at most."""
        return await to_thread.run_sync(work, limiter=self._limiters[kind])

    async def begin(
        self, name: str | None, task_of: Callable[[], Task], *, beside: bool = False
    ) -> Generation:
        """Submit the task that ``task_of`` reads, on another thread, to the model of this name.
        ``beside``: it belongs to a request that has its place already.

        Raises InputError, IngotError, or HttpError: 429 where too many wait already.
        """
        held = ExitStack()
        try:
            place = self._enter(name, held, beside=beside)
            served = self.pool.lease_loaded(name, held)
            if served is None:
                task = await self.in_thread(task_of)  # what is wrong with it is told before
                served = await self._loads.lease(name, held)
                beginning = partial(self._begin, served, lambda: task, place, held)
            else:
                beginning = partial(self._begin, served, task_of, place, held)
            work = asyncio.ensure_future(self.in_thread(beginning, served.name))
        except BaseException:
            held.close()
            raise
        # Not to be abandoned: what it has begun has to be ended.
        try:
            generation = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_close_result)
            raise
        self._begun[id(generation)] = generation
        generation.held.callback(self._begun.pop, id(generation), None)
        if self._closing:
            self._end_waiting()
        return generation

    @asynccontextmanager
    async def place(self, name: str | None) -> AsyncIterator[Served]:
        """The model, and a place among the requests to it, for what is no generation. Raises as
        ``begin``."""
        with ExitStack() as held:
            self._enter(name, held)
            served = await self._loads.lease(name, held)
            if served.adapter is not None:
                why = f"embeddings are made without adapters: ask for {served.name}"
                raise HttpError(400, "unsupported_parameter", why)
            yield served

    async def tokens(self, name: str | None, read: Callable[[], Task]) -> tuple[Task, list[int]]:
        """Return what ``read`` gives, and the tokens of its prompt; no place in the queue is
        taken. Raises as ``begin``."""

        def work() -> tuple[Task, list[int]]:
            task, engine = read(), served.engine
            require_short(engine, task.opening)
            params = task.sampling or self.defaults
            return task, prepare(task, engine, params, bounded=False).ids

        with ExitStack() as held:
            served = await self._loads.lease(name, held)
            return await self.in_thread(work, served.name)

    async def embedded(self, served: Served, ids: list[int]) -> Sequence[float]:
        """Return the embedding of a text's tokens, computed between steps of running answers.
        Raises HttpError, or RequestError for tokens that do not fit.
        """
        self._check_open()
        stream = served.engine.submit(Request(ids, embed=True))
        try:
            completion = await stream
        finally:
            stream.cancel()
        _check(completion)
        return completion.embedding or ()

    def end(self) -> None:
        """Begin nothing more, and end what waits: the server ends."""
        self._closing = True
        self._loads.end()
        for call in self.at_end:
            call()
        self._end_waiting()

    def _end_waiting(self) -> None:
        """End the generations that have no slot yet, by the engine's order: the most urgent ones
        first, then the oldest."""
        by_model = defaultdict[str, list[Generation]](list)
        for one in self._begun.values():
            by_model[one.served.name].append(one)
        for found in by_model.values():
            free = found[0].served.engine.slots
            found.sort(key=lambda one: (one.stream.first_at is None, one.request.priority))
            for one in found:
                if free <= 0 and one.stream.first_at is None:
                    one.stream.cancel()
                free -= one.request.params.samples

    def _begin(
        self,
        served: Served,
        task_of: Callable[[], Task],
        place: "_Place",
        given: ExitStack,
    ) -> Generation:
        with ExitStack() as held:
            held.push(given)
            task = task_of()
            if task.reproducible and not served.choice.settings.reproducible:
                why = f"reproducible: {served.name} is not served with --reproducible"
                raise HttpError(400, "unsupported_parameter", why)
            engine, params = served.engine, task.sampling or self.defaults
            place.grow(params.samples, engine.slots)
            said = prepare(task, engine, params)
            request = said.request(priority=task.priority, adapter=served.adapter)
            settings, adapter = served.choice.settings, served.adapter_file
            self.pool.prefixes.before(engine, settings, said.ids, adapter)
            stream = engine.submit(request)
            generation = Generation(served, request, task, said, stream)
            held.callback(self._done, generation)
            held.callback(stream.cancel)
            generation.held = held.pop_all()
            return generation

    def _done(self, generation: Generation) -> None:
        """Tell of what has ended, if it had any text."""
        completion, served = generation.completion, generation.served
        if completion is None or not completion.usage.completion_tokens:
            return
        for tell in self.done:
            tell(generation, completion)
        settings, ids = served.choice.settings, generation.prepared.ids
        prefixes, adapter = self.pool.prefixes, served.adapter_file
        prefixes.after(served.engine, settings, ids, completion.timings, adapter)

    def _check_open(self) -> None:
        if self._closing:
            raise shutting_down()

    def _enter(self, name: str | None, held: ExitStack, *, beside: bool = False) -> "_Place":
        """A place for one answer in the queue of a model, before anything is waited for. Raises
        UnknownModelError, or HttpError: 429, or 503 where the server ends."""
        self._check_open()
        model = self.pool.model_of(name)
        served = self.pool.loaded().get(model)
        place = _Place(self, model, beside=beside)
        place.grow(1, MOST_SLOTS if served is None else served.engine.slots)
        held.callback(place.leave)
        return place


@dataclass(slots=True)
class _Place:
    """The answers of one request, as they count for ``--queue``."""

    generator: Generator
    model: str
    beside: bool  # is not refused
    count: int = 0
    begun: float = field(default_factory=time.monotonic)

    def grow(self, count: int, slots: int) -> None:
        """Count as so many answers to a model with so many slots. Raises HttpError: 429 where they
        are too many beside others, 400 where they always are."""
        own = self.generator
        if count <= self.count:
            return
        room = slots + own._queue
        if count > room:
            said = f"n: {count} answers are more than run and wait here: {room}"
            raise HttpError(400, "invalid_value", said)
        with own._lock:
            others = own._running.get(self.model, 0) - self.count
            if others + count > room and not self.beside:
                seconds = own._seconds.get(self.model, 1.0)
                wait = max(1, min(60, round(seconds * own._queue / slots)))
                said = f"{others} requests run or wait already"
                raise HttpError(429, "queue_full", said, retry_s=wait)
            own._running[self.model] = others + count
            self.count = count

    def leave(self) -> None:
        """Let others have it."""
        own, seconds = self.generator, time.monotonic() - self.begun
        with own._lock:
            own._running[self.model] -= self.count
            own._seconds[self.model] = 0.9 * own._seconds.get(self.model, seconds) + 0.1 * seconds


def _close_result(work: "asyncio.Future[Generation]") -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()


def _check(completion: Completion) -> None:
    """Raises HttpError for one that is no whole answer."""
    code = _PROBLEMS.get(completion.finish_reason)
    if code is None:
        return
    said = completion.error or f"the answer was ended: {completion.finish_reason}"
    if said.startswith(UNFOLLOWED):  # the request's doing, which only some of its text has shown
        code = "invalid_value"
    raise problem_error(Problem("worker_crash" if completion.retryable else code, said))


async def while_connected(request: HttpRequest, work: Awaitable[_Value]) -> _Value:
    """The result of ``work``; HttpError where the client has gone meanwhile. The body has been
    read: nothing else comes but the end of the connection."""
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise HttpError(499, "client_gone", "the client has closed the connection")
        return doing.result()
    finally:
        for one in (doing, gone):
            one.cancel()


async def _gone(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def asked_model(body: Any) -> str | None:
    """The model that a body names; None for the server's first. Raises InputError, also for a body
    that is no object."""
    require_object(body, "body")
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise InputError("wrong_type", "model must be a text")
    return name


# Answers as they are sent: whole, or as server-sent events.

encode = json.JSONEncoder(ensure_ascii=False).encode
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def whole_answer(request: HttpRequest, generation: Generation) -> Answer:
    """The answer of a request that is not streamed. Raises HttpError where there is none."""
    try:
        return await while_connected(request, generation.answer())
    finally:
        generation.close()


def named_events(values: Iterable[Given]) -> bytes:
    """Server-sent events, each called as its ``type``."""
    return b"".join(f"event: {one['type']}\ndata: {encode(one)}\n\n".encode() for one in values)


class EventStream(StreamingResponse):
    """Sends ``events``, and ends the generation whatever happens: also when the client has gone
    before the first of them."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], generation: Generation) -> None:
        super().__init__(events, headers=_HEADERS)
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()
