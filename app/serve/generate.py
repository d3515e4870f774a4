"""One request to a model: room for it, its tokens, the engine's stream, and its end whatever the
client does."""

import asyncio
import gc
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request as HttpRequest

from app.openai.answer import Answer, answer_of, failure_of
from app.openai.asking import Asked, asked
from app.openai.completions import echoed
from app.openai.task import Problem, Task
from app.openai.tool_parser import ContentDelta, Delta
from app.prompts import PromptStyle, encode
from app.serve.errors import HttpError, problem_error
from app.serve.pool import ModelPool, Served
from runtimes.api import EngineApi
from runtimes.request import Chunk, Completion, FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.stream import Stream

_Value = TypeVar("_Value")

# Threads that load models and make tokens: a worker that restarts must not hold up other requests.
_THREADS = 64
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
    asked: Asked
    stream: Stream
    _held: ExitStack
    _done: Callable[[Completion], None]
    first_s: float | None = None  # from the request's arrival to the first piece of text
    begun: float = field(default_factory=time.monotonic)
    completion: Completion | None = None

    async def pieces(self) -> AsyncIterator[Chunk]:
        """Pieces of text as they come."""
        async for chunk in self.stream:
            if self.first_s is None:
                self.first_s = time.monotonic() - self.begun
            yield chunk

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Text and calls of tools as they come, each with the number of its sample."""
        parsers = [self.asked.parser() for _ in range(self.request.params.n)]
        async for chunk in self.pieces():
            parser = parsers[chunk.index]
            if parser is not None:
                for delta in parser.feed(chunk.text):
                    yield chunk.index, delta
            elif chunk.text:
                yield chunk.index, ContentDelta(chunk.text)
        for index, parser in enumerate(parsers):
            for delta in parser.end() if parser is not None else ():
                yield index, delta

    async def answer(self) -> Answer:
        """What became of it; an ``Answer`` with an error where there is none."""
        completion = self.completion = await self.stream
        problem = _problem_of(completion)
        if problem is not None:
            return failure_of(problem, partial=completion.text)
        answer = answer_of([completion], self.asked.parser)
        if self.request.params.prompt_logprobs is None:
            return answer
        text = str(self.asked.messages[0]["content"]) if self.asked.messages else None
        return echoed(answer, text, self.request, completion)

    def close(self) -> None:
        """End it, if it still runs, and let others have its place."""
        self.stream.cancel()
        if self.completion is not None:
            self._done(self.completion)
        self._held.close()


class Generator:
    """Submits requests to the models of a pool, so many at a time."""

    def __init__(self, pool: ModelPool, defaults: SamplingParams, queue: int) -> None:
        """``queue``: how many requests of a model may wait for a slot."""
        self.pool, self.defaults, self._queue = pool, defaults, queue
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        self._seconds: dict[str, float] = {}  # that requests took lately, averaged
        self._limiter: CapacityLimiter | None = None

    def idle(self) -> list[tuple[EngineApi, RunnerSettings]]:
        """Loaded models without a request, and what they were loaded with."""
        loaded = self.pool.loaded().items()
        free = [one for name, one in loaded if not self.running(name)]
        return [(one.engine, one.choice.settings) for one in free]

    def running(self, name: str) -> int:
        """Requests of a model that run or wait."""
        with self._lock:
            return self._running.get(name, 0)

    async def in_thread(self, work: Callable[[], _Value]) -> _Value:
        """The result of ``work`` on a thread, for what may wait for a model."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(_THREADS)
        return await to_thread.run_sync(work, limiter=self._limiter)

    async def begin(
        self, name: str | None, task_of: Callable[[], Task], *, beside: bool = False
    ) -> Generation:
        """Submit the task that ``task_of`` reads, on another thread, to the model of this name.
        ``beside``: it belongs to a request that has its place already.

        Raises InputError, IngotError, or HttpError: 429 where too many wait already.
        """
        # Not to be abandoned: what it has begun has to be ended.
        work = asyncio.ensure_future(self.in_thread(partial(self._begin, name, task_of, beside)))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_close_result)
            raise

    @asynccontextmanager
    async def place(self, name: str | None) -> AsyncIterator[Served]:
        """The model, and a place among the requests to it, for what is no generation. Raises as
        ``begin``."""
        held = ExitStack()
        work = asyncio.ensure_future(self.in_thread(partial(self._place, name, held)))
        try:
            yield await asyncio.shield(work)
        finally:
            work.add_done_callback(partial(_leave_place, held))

    def _place(self, name: str | None, held: ExitStack) -> Served:
        served = held.enter_context(self.pool.lease(name))
        if served.adapter is not None:
            why = f"embeddings are made without adapters: ask for {served.name}"
            raise HttpError(400, "unsupported_parameter", why)
        self._enter(served, beside=False)
        held.callback(self._leave, served.name, time.monotonic())
        return served

    def _begin(self, name: str | None, task_of: Callable[[], Task], beside: bool) -> Generation:
        begun = time.monotonic()
        with ExitStack() as held:
            task = task_of()  # what is wrong with it is told without loading anything
            served = held.enter_context(self.pool.lease(name))
            if task.reproducible and not served.choice.settings.reproducible:
                why = f"reproducible: {served.name} is not served with --reproducible"
                raise HttpError(400, "unsupported_parameter", why)
            self._enter(served, beside=beside)
            held.callback(self._leave, served.name, begun)
            engine, params = served.engine, task.sampling or self.defaults
            said = asked(task, task.opening, engine.model.chat_template, params)
            ids = list(task.ids)
            if not ids:
                ids = encode(engine, PromptStyle(raw=task.raw), said.messages, said.tools)
            request = Request(ids, said.params, task.priority, adapter=served.adapter)
            settings, adapter = served.choice.settings, served.adapter_file
            self.pool.prefixes.before(engine, settings, ids, adapter)
            stream = engine.submit(request)
            return Generation(
                served, request, said, stream, held.pop_all(), self._done(served, ids), begun=begun
            )

    def _done(self, served: Served, ids: list[int]) -> Callable[[Completion], None]:
        def note(completion: Completion) -> None:
            if completion.usage.completion_tokens:
                settings, timings = served.choice.settings, completion.timings
                prefixes, adapter = self.pool.prefixes, served.adapter_file
                prefixes.after(served.engine, settings, ids, timings, adapter)

        return note

    def _enter(self, served: Served, *, beside: bool) -> None:
        with self._lock:
            running = self._running.get(served.name, 0)
            if running >= served.engine.slots + self._queue and not beside:
                seconds = self._seconds.get(served.name, 1.0)
                wait = max(1, min(60, round(seconds * self._queue / served.engine.slots)))
                said = f"{running} requests run or wait already"
                raise HttpError(429, "queue_full", said, kind="rate_limit_error", retry_s=wait)
            self._running[served.name] = running + 1

    def _leave(self, name: str, begun: float) -> None:
        with self._lock:
            self._running[name] -= 1
            seconds = time.monotonic() - begun
            self._seconds[name] = 0.9 * self._seconds.get(name, seconds) + 0.1 * seconds


def _leave_place(held: ExitStack, work: "asyncio.Future[Served]") -> None:
    if not work.cancelled():
        work.exception()  # has been told, or nobody is there to be told
    held.close()


def _close_result(work: "asyncio.Future[Generation]") -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()


def _problem_of(completion: Completion) -> Problem | None:
    """Why it is no whole answer."""
    code = _PROBLEMS.get(completion.finish_reason)
    if code is None:
        return None
    said = completion.error or f"the answer was ended: {completion.finish_reason}"
    return Problem("worker_crash" if completion.retryable else code, said)


async def embedded(served: Served, ids: list[int]) -> Sequence[float]:
    """What the model makes of a text's tokens, between steps of what it answers. Raises HttpError,
    or RequestError for tokens that do not fit."""
    stream = served.engine.submit(Request(ids, embed=True))
    try:
        completion = await stream
    finally:
        stream.cancel()
    problem = _problem_of(completion)
    if problem is not None:
        raise problem_error(problem)
    return completion.embedding or ()


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


async def json_body(request: HttpRequest) -> Any:
    """The body as JSON. Raises HttpError (400)."""
    data = await request.body()
    gc.disable()  # it would look through millions of small values again and again
    try:
        return json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "invalid_json", f"the body is not JSON: {error}"[:300]) from None
    finally:
        gc.enable()


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def asked_model(body: Any) -> str | None:
    """The model that a body names; None for the server's first. Raises HttpError (400)."""
    name = body.get("model") if isinstance(body, dict) else None
    if name is not None and not isinstance(name, str):
        raise HttpError(400, "wrong_type", "model must be a text")
    return name


def error_of(answer: Answer) -> HttpError | None:
    """The answer's error as HTTP tells it."""
    return None if answer.error is None else problem_error(answer.error)
