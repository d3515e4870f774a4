"""OpenAI's /v1/embeddings."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from app.openai.embeddings import SCHEMA, cut, embedding_task, embeddings_body
from app.openai.prepare import prepare
from app.openai.task import Embed, Task
from app.serve.bodies import json_body, read_task
from app.serve.generate import Generator, asked_model, while_connected
from app.serve.openapi import json_body as body_schema
from app.serve.options import MOST_IDS
from app.serve.pool import Served
from runtimes.request import SamplingParams


def routes(generator: Generator) -> APIRouter:
    """The only one."""
    router = APIRouter()

    @router.post("/v1/embeddings", openapi_extra=body_schema(SCHEMA))
    async def embeddings(request: Request) -> Response:
        """Vectors of texts."""
        body = await json_body(request, MOST_IDS)
        name, task_of = asked_model(body), await read_task(request, partial(embedding_task, body))
        task = await generator.in_thread(task_of)
        del body  # is not needed any more, and may be large
        how = task.parts[0].embed
        assert how is not None
        answer = _answer(generator, name, task.parts, how)
        return JSONResponse(await while_connected(request, answer))

    return router


async def _answer(
    generator: Generator, name: str | None, texts: Sequence[Task], how: Embed
) -> dict[str, Any]:
    vectors, tokens = [], 0
    async with generator.place(name) as served:
        for one in texts:  # each by itself: others' steps come between
            ids = await generator.in_thread(partial(_tokens, served, one), served.name)
            vectors.append(cut(await generator.embedded(served, ids), how.dimensions))
            tokens += len(ids)
    return embeddings_body(vectors, tokens, served.name, packed=how.packed)


def _tokens(served: Served, text: Task) -> list[int]:
    return prepare(text, served.engine, SamplingParams()).ids
