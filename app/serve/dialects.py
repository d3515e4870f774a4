"""Other dialects than OpenAI's chat: Anthropic's /v1/messages with its count of tokens, and
OpenAI's /v1/responses."""

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from app.openai.anthropic import MessageEvents, messages_task
from app.openai.responses import ResponseEvents, response_task
from app.openai.task import Task
from app.openai.validation import InputError
from app.serve.bodies import ANY_BODY, json_body, read_task
from app.serve.errors import MESSAGES, HttpError
from app.serve.generate import (
    EventStream,
    Generation,
    Generator,
    asked_model,
    named_events,
    while_connected,
    whole_answer,
)
from app.serve.observe import Observer
from runtimes.request import SamplingParams

_Events = MessageEvents | ResponseEvents


def routes(generator: Generator, observer: Observer) -> APIRouter:
    """Router for /v1/messages, /v1/messages/count_tokens and /v1/responses."""
    router = APIRouter()

    @router.post(MESSAGES, openapi_extra=ANY_BODY)
    async def messages(request: Request) -> Response:
        """A message that follows a conversation, in Anthropic's form."""
        return await _answer(request, generator, observer, messages_task, MessageEvents)

    @router.post(f"{MESSAGES}/count_tokens", openapi_extra=ANY_BODY)
    async def count_tokens(request: Request) -> dict[str, int]:
        """How many tokens the prompt of such a message has."""
        body = await json_body(request)
        name = asked_model(body)
        reading = partial(messages_task, body, generator.defaults, counted=True)
        task, ids = await generator.tokens(name, await read_task(request, reading))
        observer.left_out.of_request(request.scope, task.ignored)
        return {"input_tokens": len(ids)}

    @router.post("/v1/responses", openapi_extra=ANY_BODY)
    async def responses(request: Request) -> Response:
        """Answer an input with text and function calls."""
        return await _answer(request, generator, observer, response_task, ResponseEvents)

    return router


async def _answer(
    request: Request,
    generator: Generator,
    observer: Observer,
    read: Callable[[Any, SamplingParams], Task],
    events_of: Callable[[str, str, int, Mapping[str, Any]], _Events],
) -> Response:
    body = await json_body(request)
    name, streaming = asked_model(body), body.pop("stream", None) or False
    if not isinstance(streaming, bool):
        raise InputError("wrong_type", "stream must be true or false")
    task_of = await read_task(request, partial(read, body, generator.defaults))
    generation = await while_connected(request, generator.begin(name, task_of))
    del task_of
    for large in ("messages", "input"):  # are not needed any more
        body.pop(large, None)
    observer.begin(request, generation)
    tokens = len(generation.request.prompt)
    begun = partial(events_of, secrets.token_hex(12), generation.served.called, tokens, body)
    if streaming:
        return EventStream(_told(generation, begun()), generation)
    answer = await whole_answer(request, generation)
    return JSONResponse(begun().whole(answer, _stop(generation)))


async def _told(generation: Generation, events: _Events) -> AsyncIterator[bytes]:
    yield named_events(events.begin())
    async for _, delta in generation.deltas():
        yield named_events(events.add(delta))
    try:
        answer = await generation.answer()
    except HttpError as error:
        yield named_events([events.failed(error.status, error.message)])
        return
    yield named_events(events.end(answer, _stop(generation)))


def _stop(generation: Generation) -> str | None:
    """The stop sequence that ended it."""
    return None if generation.completion is None else generation.completion.stop
