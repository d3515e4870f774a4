"""A response that is streamed as server-sent events."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.openai.answer import Answer
from app.serve.generate import Generation, error_of, while_connected
from app.serve.observe import Observer

encode = json.JSONEncoder(ensure_ascii=False).encode
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def whole_answer(request: Request, generation: Generation, observer: Observer) -> Answer:
    """The answer of a request that is not streamed. Raises HttpError for one with an error."""
    try:
        answer = await while_connected(request, generation.answer())
    finally:
        observer.end(generation)
        generation.close()
    problem = error_of(answer)
    if problem is not None:
        raise problem
    return answer


def named_events(values: Iterable[Mapping[str, Any]]) -> bytes:
    """Server-sent events, each called as its ``type``."""
    return b"".join(f"event: {one['type']}\ndata: {encode(one)}\n\n".encode() for one in values)


class EventStream(Response):
    """Sends ``events``, and ends the generation whatever happens: also when the client has gone
    before the first of them."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], generation: Generation, observer: Observer
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events, self._generation, self._observer = events, generation, observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                await self._send(send)
                tasks.cancel_scope.cancel()
        finally:
            self._observer.end(self._generation)
            self._generation.close()

    async def _send(self, send: Send) -> None:
        begun = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(begun)
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
