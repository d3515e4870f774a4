"""OpenAI's /v1/responses, without anything that has to be stored."""

import secrets
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from app.openai.responses import response_task
from app.openai.responses_answer import ResponseEvents, response_body
from app.serve.bodies import json_body, read_task
from app.serve.errors import HttpError
from app.serve.events import EventStream, named_events, whole_answer
from app.serve.generate import (
    Generation,
    Generator,
    asked_model,
    error_of,
    while_connected,
)
from app.serve.observe import Observer
from app.serve.openapi import ANY_BODY


def routes(generator: Generator, observer: Observer) -> APIRouter:
    """It alone."""
    router = APIRouter()

    @router.post("/v1/responses", openapi_extra=ANY_BODY)
    async def responses(request: Request) -> Response:
        """What follows an input: text, and calls of functions."""
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
            return EventStream(_events(generation, number, body), generation, observer)
        answer = await whole_answer(request, generation, observer)
        return JSONResponse(response_body(answer, number, generation.served.called, body))

    return router


async def _events(
    generation: Generation, number: str, body: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    events = ResponseEvents(number, generation.served.called, body)
    yield named_events(events.begin())
    async for _, delta in generation.deltas():
        yield named_events(events.add(delta))
    answer = await generation.answer()
    problem = error_of(answer)
    yield named_events(events.end(answer) if problem is None else events.fail(problem.message))
