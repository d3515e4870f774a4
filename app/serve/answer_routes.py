"""Paths that generate an answer: OpenAI's /v1/chat/completions, /v1/completions and /v1/responses,
Anthropic's /v1/messages with its count of tokens, and /predict."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from app.openai.answer import Answer
from app.openai.anthropic import MessageEvents, messages_task
from app.openai.completions import completion_tasks, has_several
from app.openai.request import Generating, body_task
from app.openai.response import IDS, answer_body, delta_body
from app.openai.responses import ResponseEvents, response_task
from app.openai.result import result
from app.openai.task import Task
from app.openai.tool_parser import ContentDelta, ThoughtDelta
from app.openai.validation import Given, InputError, JsonObject, require_object, switch
from app.serve.bodies import ANY_BODY, body_of, json_body, read_task
from app.serve.errors import MESSAGES, HttpError
from app.serve.generate import (
    EventStream,
    Generation,
    Generator,
    asked_model,
    encode,
    named_events,
    while_connected,
    whole_answer,
)
from app.serve.observe import Observer
from app.serve.options import MOST_IDS
from runtimes.request import Completion, SamplingParams
from runtimes.request import Request as EngineRequest

# A body with several prompts: all of them run at once, and one body answers them.


async def answer_several(
    request: Request, generator: Generator, observer: Observer, name: str | None, tasks: list[Task]
) -> Response:
    """Choices in the order of the prompts, and of each one's samples.

    As many answers run at the same time as the model has slots, so that such a body takes no more
    of the queue than as many clients do.
    """
    first = await while_connected(request, generator.begin(name, lambda: tasks[0]))
    observer.begin(request, first)
    model, slots = first.served.called, first.served.engine.slots
    room = asyncio.Semaphore(max(1, slots // first.request.params.samples))

    async def answer(task: Task) -> tuple[EngineRequest, Completion]:
        async with room:
            generation = first
            if task is not tasks[0]:
                generation = await generator.begin(name, lambda: task, beside=True)
            try:
                return generation.request, await generation.finished()
            finally:
                generation.close()

    async def run() -> list[tuple[EngineRequest, Completion]]:
        async with asyncio.TaskGroup() as group:
            works = [group.create_task(answer(task)) for task in tasks]
        return [work.result() for work in works]

    try:
        pairs = await while_connected(request, run())
    except ExceptionGroup as errors:  # the first one has ended the others
        raise errors.exceptions[0] from None
    finally:
        first.close()
    asked, completions = zip(*pairs, strict=True)
    whole = result(Task(parts=tuple(tasks)), asked, completions)
    whole = replace(whole, timings=None)  # they would be of many requests
    return JSONResponse(answer_body(whole, "completions", secrets.token_hex(12), model))


_OBJECTS = {"chat": "chat.completion.chunk", "completions": "text_completion"}
_OWN = ("stream", "stream_options", "return_token_ids")  # read here
_ECHO = {"echo": {"type": "boolean"}}
_STREAM = {"stream": {"type": "boolean"}}
_Events = MessageEvents | ResponseEvents


def routes(generator: Generator, observer: Observer) -> APIRouter:
    """Router for every path that generates an answer."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=body_of("chat", **_STREAM))
    async def chat(request: Request) -> Response:
        """A message that follows a conversation."""
        return await _answer(request, generator, observer, "chat", await json_body(request))

    @router.post("/v1/completions", openapi_extra=body_of("completions", **_STREAM, **_ECHO))
    async def completions(request: Request) -> Response:
        """A text that continues a text."""
        return await _answer(
            request, generator, observer, "completions", await json_body(request, MOST_IDS)
        )

    @router.post("/predict", openapi_extra=body_of("completions", num_samples={"type": "integer"}))
    async def predict(request: Request) -> Response:
        """``num_samples`` texts that continue ``prompt``."""
        body = await json_body(request, MOST_IDS)
        require_object(body, "body")
        body = {"n": body.get("num_samples"), **body}
        body.pop("num_samples", None)
        return await _answer(request, generator, observer, "completions", body)

    @router.post(MESSAGES, openapi_extra=ANY_BODY)
    async def messages(request: Request) -> Response:
        """A message that follows a conversation, in Anthropic's form."""
        return await _answer_events(request, generator, observer, messages_task, MessageEvents)

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
        return await _answer_events(request, generator, observer, response_task, ResponseEvents)

    return router


async def _answer(
    request: Request,
    generator: Generator,
    observer: Observer,
    endpoint: Generating,
    body: Any,
) -> Response:
    name = asked_model(body)
    streaming, with_usage = _streaming(body)
    with_ids = endpoint == "completions" and body.get("return_token_ids") is True
    body = {k: v for k, v in body.items() if k not in _OWN}
    several = endpoint == "completions" and has_several(body)
    if streaming and (several or (endpoint == "completions" and body.get("echo"))):
        raise InputError("invalid_value", "several prompts and echo cannot be streamed")
    tasks_of = await read_task(request, partial(_tasks, body, endpoint, generator.defaults))
    del body  # is not needed any more, and may be large
    if several:
        tasks = await generator.in_thread(tasks_of)
        return await answer_several(request, generator, observer, name, tasks)
    generation = await while_connected(request, generator.begin(name, lambda: tasks_of()[0]))
    observer.begin(request, generation)
    number = secrets.token_hex(12)
    if streaming:
        chunks = _chunks(generation, endpoint, number, with_usage=with_usage, with_ids=with_ids)
        return EventStream(chunks, generation)
    answer = await whole_answer(request, generation)
    said = answer_body(answer, endpoint, number, generation.served.called)
    if with_ids and generation.completion is not None:
        for choice, sample in zip(said["choices"], generation.completion.choices, strict=True):
            choice["token_ids"] = sample.token_ids
    return JSONResponse({**said, **_context(answer, generation)})


def _tasks(body: Any, endpoint: Generating, defaults: SamplingParams) -> list[Task]:
    if endpoint == "completions":
        return completion_tasks(body, defaults)
    return [body_task(body, endpoint, defaults, served=True)]


def _streaming(body: Given) -> tuple[bool, bool]:
    """Whether to stream, and with a last event for the counts. Raises InputError."""
    stream, options = switch(body, "stream"), body.get("stream_options") or {}
    require_object(options, "stream_options")
    if options and not stream:
        raise InputError("invalid_value", "stream_options needs stream: true")
    best_of, n = body.get("best_of"), body.get("n")
    if stream and best_of is not None and best_of != (n or 1):
        raise InputError("invalid_value", "the best of several answers cannot be streamed")
    return stream, options.get("include_usage") is True


async def _chunks(
    generation: Generation,
    endpoint: Generating,
    number: str,
    *,
    with_usage: bool,
    with_ids: bool,
) -> AsyncIterator[bytes]:
    """The events: pieces of text, how each sample ended, counts and times."""
    chat = endpoint == "chat"
    common: JsonObject = {
        "id": f"{IDS[endpoint]}-{number}",
        "object": _OBJECTS[endpoint],
        "created": int(time.time()),
        "model": generation.served.called,
    }

    def event(*choices: JsonObject, **more: Any) -> bytes:
        return data({**common, "choices": list(choices), **more})

    if chat:
        for index in range(generation.request.params.n):
            yield event(_piece(index, {"role": "assistant", "content": ""}))
    told: Counter[int] = Counter()  # tokens of each sample
    if with_ids:
        async for chunk in generation.stream:
            told[chunk.index] += len(chunk.token_ids)
            said = _piece(chunk.index, "" if chunk.thought else chunk.text)
            said |= delta_body(ThoughtDelta(chunk.text)) if chunk.thought else {}
            yield event({**said, "token_ids": chunk.token_ids})
    else:
        text_event = _text_events(event, chat=chat)
        async for index, delta in generation.deltas():
            if isinstance(delta, ContentDelta):
                yield text_event(index, delta.text)
            elif chat:
                yield event(_piece(index, delta_body(delta)))
            else:
                yield event(_piece(index, "") | delta_body(delta))
    try:
        answer = await generation.answer()
    except HttpError as error:
        yield data(error.body())
        return
    body = answer_body(answer, endpoint, number, common["model"])
    last = []
    for choice in body["choices"]:
        ended = _piece(choice["index"], {} if chat else "", choice["finish_reason"])
        ended |= {name: choice[name] for name in ("logprobs", "finish_details") if name in choice}
        if with_ids and generation.completion is not None:  # those that ended it have no text
            sample = generation.completion.choices[choice["index"]]
            ended["token_ids"] = sample.token_ids[told[choice["index"]] :]
        last.append(event(ended))
    if with_usage:
        counts = {"usage": body["usage"], "timings": body["timings"]}
        last.append(event(**counts, **_context(answer, generation)))
    yield b"".join([*last, b"data: [DONE]\n\n"])


def _text_events(event: Callable[..., bytes], *, chat: bool) -> Callable[[int, str], bytes]:
    """Makes the events of pieces of text. There is one a token: all but the text is made once."""

    @cache
    def around(index: int) -> list[bytes]:
        mark = secrets.token_hex(12)
        whole = event(_piece(index, {"content": mark} if chat else mark))
        return whole.split(encode(mark).encode())

    def text_event(index: int, text: str) -> bytes:
        before, after = around(index)
        return before + encode(text).encode() + after

    return text_event


def _piece(index: int, said: Any, reason: str | None = None) -> JsonObject:
    name = "text" if isinstance(said, str) else "delta"
    return {"index": index, name: said, "logprobs": None, "finish_reason": reason}


def _context(answer: Answer, generation: Generation) -> JsonObject:
    """How much of its context the request took."""
    used = (answer.usage or {}).get("total_tokens", 0)
    return {"context": {"used": used, "size": generation.served.engine.context}}


def data(value: Any) -> bytes:
    """A server-sent event (WHATWG HTML, section 9.2)."""
    return b"data: " + encode(value).encode() + b"\n\n"


# Anthropic's messages and OpenAI's responses: a class of each makes the events and the whole body.


async def _answer_events(
    request: Request,
    generator: Generator,
    observer: Observer,
    read: Callable[[Any, SamplingParams], Task],
    events_of: Callable[[str, str, int, Given], _Events],
) -> Response:
    body = await json_body(request)
    name, streaming = asked_model(body), switch(body, "stream")
    body.pop("stream", None)
    task_of = await read_task(request, partial(read, body, generator.defaults))
    generation = await while_connected(request, generator.begin(name, task_of))
    observer.begin(request, generation)
    for large in ("messages", "input"):  # are not needed any more
        body.pop(large, None)
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
        yield named_events([events.failed(error.status, str(error))])
        return
    yield named_events(events.end(answer, _stop(generation)))


def _stop(generation: Generation) -> str | None:
    """The stop sequence that ended it."""
    return None if generation.completion is None else generation.completion.stop
