"""A response that is streamed as server-sent events."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.openai.answer import Answer
from app.serve.generate import Generation, while_connected

encode = json.JSONEncoder(ensure_ascii=False).encode
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def whole_answer(request: Request, generation: Generation) -> Answer:
    """The answer of a request that is not streamed. Raises HttpError where there is none."""
    try:
        return await while_connected(request, generation.answer())
    finally:
        generation.close()


def named_events(values: Iterable[Mapping[str, Any]]) -> bytes:
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
