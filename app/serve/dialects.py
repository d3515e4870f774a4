"""Other dialects than OpenAI's chat: Anthropic's /v1/messages with its count of tokens, and
OpenAI's /v1/responses."""

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from app.openai.anthropic import MessageEvents, error_body, message_body, messages_task
from app.openai.prepare import prepare
from app.openai.responses import ResponseEvents, response_body, response_task
from app.openai.task import Task
from app.prompts import require_short
from app.serve.bodies import json_body, read_task
from app.serve.errors import MESSAGES, HttpError, http_error
from app.serve.events import EventStream, named_events, whole_answer
from app.serve.generate import Generation, Generator, asked_model, error_of, while_connected
from app.serve.observe import Observer
from app.serve.openapi import ANY_BODY
from app.serve.pool import Served
from runtimes.request import SamplingParams


def messages_routes(generator: Generator, observer: Observer) -> APIRouter:
    """Router for /v1/messages and /v1/messages/count_tokens."""
    router = APIRouter()

    @router.post(MESSAGES, openapi_extra=ANY_BODY)
    async def messages(request: Request) -> Response:
        """A message that follows a conversation, in Anthropic's form."""
        body = await json_body(request)
        name, streaming = asked_model(body), False
        if isinstance(body, dict):
            streaming = body.pop("stream", None) or False
            if not isinstance(streaming, bool):
                raise HttpError(400, "wrong_type", "stream must be true or false")
        task_of = await read_task(request, partial(messages_task, body, generator.defaults))
        del body  # is not needed any more, and may be large
        generation = await while_connected(request, generator.begin(name, task_of))
        del task_of
        observer.begin(request, generation)
        number = secrets.token_hex(12)
        if streaming:
            return EventStream(_events(generation, number), generation, observer)
        answer = await whole_answer(request, generation, observer)
        return JSONResponse(
            message_body(answer, number, generation.served.called, _stop(generation))
        )

    @router.post(f"{MESSAGES}/count_tokens", openapi_extra=ANY_BODY)
    async def count_tokens(request: Request) -> dict[str, int]:
        """How many tokens the prompt of such a message has."""
        body = await json_body(request)
        name = asked_model(body)
        reading = partial(messages_task, body, generator.defaults, counted=True)
        task_of = await read_task(request, reading)
        async with generator.model(name) as served:
            work = partial(_count, served, generator.defaults, task_of)
            count, left_out = await generator.in_thread(work, served.name)
        observer.left_out.of_request(request.scope, left_out)
        return {"input_tokens": count}

    return router


async def _events(generation: Generation, number: str) -> AsyncIterator[bytes]:
    events = MessageEvents(number, generation.served.called, len(generation.request.prompt))
    yield named_events(events.begin())
    async for _, delta in generation.deltas():
        yield named_events(events.add(delta))
    answer = await generation.answer()
    problem = error_of(answer)
    if problem is not None:
        found = http_error(problem)
        yield named_events([error_body(found.status, found.message)])
        return
    yield named_events(events.end(answer, _stop(generation)))


def _stop(generation: Generation) -> str | None:
    """The stop sequence that ended it."""
    return None if generation.completion is None else generation.completion.stop


def _count(
    served: Served, defaults: SamplingParams, task_of: Callable[[], Task]
) -> tuple[int, Sequence[str]]:
    """The tokens of a task, and what is left out of it."""
    task, engine = task_of(), served.engine
    require_short(engine, task.opening)
    return len(prepare(task, engine, task.sampling or defaults, bounded=False).ids), task.ignored


def responses_routes(generator: Generator, observer: Observer) -> APIRouter:
    """Router for /v1/responses."""
    router = APIRouter()

    @router.post("/v1/responses", openapi_extra=ANY_BODY)
    async def responses(request: Request) -> Response:
        """Answer an input with text and function calls."""
        body = await json_body(request)
        name, streaming = asked_model(body), False
        if isinstance(body, dict):
            streaming = body.pop("stream", None) or False
            body.pop("stream_options", None)
            if not isinstance(streaming, bool):
                raise HttpError(400, "wrong_type", "stream must be true or false")
        task_of = await read_task(request, partial(response_task, body, generator.defaults))
        generation = await while_connected(request, generator.begin(name, task_of))
        del task_of
        body.pop("input")  # is not needed any more, and may be large
        observer.begin(request, generation)
        number = secrets.token_hex(12)
        if streaming:
            return EventStream(_responses_events(generation, number, body), generation, observer)
        answer = await whole_answer(request, generation, observer)
        return JSONResponse(response_body(answer, number, generation.served.called, body))

    return router


async def _responses_events(
    generation: Generation, number: str, body: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    events = ResponseEvents(number, generation.served.called, body)
    yield named_events(events.begin())
    async for _, delta in generation.deltas():
        yield named_events(events.add(delta))
    answer = await generation.answer()
    problem = error_of(answer)
    yield named_events(events.end(answer) if problem is None else events.fail(problem.message))
