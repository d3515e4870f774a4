"""OpenAI's /v1/embeddings, and /v1/rerank."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BeforeValidator, Field

from app.openai.embeddings import FIELDS, cut, embedding_task, embeddings_body
from app.openai.prepare import prepare
from app.openai.task import Task
from app.openai.validation import MOST_INPUTS, InputError, JsonObject
from app.prompts import require_short
from app.serve.bodies import Body, body_schema, json_body, read_task
from app.serve.generate import Generator, asked_model, while_connected
from app.serve.options import MOST_IDS
from app.serve.pool import Served
from runtimes.request import SamplingParams
from runtimes.worker.engine import WorkerEngine

_Text = Annotated[str, Field(min_length=1)]


def _text_of(document: Any) -> Any:
    return document.get("text") if isinstance(document, dict) else document


class RerankBody(Body):
    """A query and documents to rank, as Jina and Cohere have it."""

    model: str | None = None
    query: _Text
    documents: Annotated[
        list[Annotated[_Text, BeforeValidator(_text_of)]],
        Field(min_length=1, max_length=MOST_INPUTS),
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False


def routes(generator: Generator) -> APIRouter:
    """Router for embeddings and rerankings."""
    router = APIRouter()

    @router.post("/v1/embeddings", openapi_extra=body_schema(FIELDS, "input"))
    async def embeddings(request: Request) -> Response:
        """Vectors of texts."""
        body = await json_body(request, MOST_IDS)
        name, task_of = asked_model(body), await read_task(request, partial(embedding_task, body))
        task = await generator.in_thread(task_of)
        del body  # is not needed any more, and may be large
        return JSONResponse(await while_connected(request, _answer(generator, name, task.parts)))

    @router.post("/v1/rerank", openapi_extra=RerankBody.described())
    async def rerank(request: Request) -> Response:
        """The documents by how well they answer the query, from 1 to 0."""
        body = await json_body(request)
        asked_of = await read_task(request, partial(RerankBody.read, body))
        asked = await generator.in_thread(asked_of)
        del body  # is not needed any more, and may be large
        return JSONResponse(await while_connected(request, _rank(generator, asked)))

    return router


async def _answer(generator: Generator, name: str | None, texts: Sequence[Task]) -> JsonObject:
    vectors, tokens, how = [], 0, texts[0].embed
    assert how is not None
    async with generator.place(name) as served:
        for one in texts:  # each by itself: others' steps come between
            ids = await generator.in_thread(partial(_tokens, served, one), served.name)
            vectors.append(cut(await generator.embedded(served, ids), how.dimensions))
            tokens += len(ids)
    return embeddings_body(vectors, tokens, served.name, packed=how.packed)


def _tokens(served: Served, text: Task) -> list[int]:
    return prepare(text, served.engine, SamplingParams()).ids


async def _rank(generator: Generator, asked: RerankBody) -> JsonObject:
    scores, tokens = [], 0
    async with generator.place(asked.model) as served:
        for number, document in enumerate(asked.documents):  # others' work comes between
            where = f"documents.{number}"
            pair = partial(_pair, served.engine, asked.query, document, where)
            ids = await generator.in_thread(pair, served.name)
            scores.append(_sigmoid((await generator.embedded(served, ids))[0]))
            tokens += len(ids)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n]
    return {
        "model": served.name,
        "results": [_result(asked, index, scores[index]) for index in order],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-max(-500.0, min(500.0, score))))


def _pair(engine: WorkerEngine, query: str, document: str, where: str) -> list[int]:
    """As XLM-RoBERTa was trained: <s> query </s></s> document </s>. Raises InputError."""
    if not engine.model.scores_pairs:
        raise InputError(
            "unsupported_model",
            f"{engine.model.path.name} is no reranker that runs here: serve the GGUF file of an"
            " XLM-RoBERTa cross-encoder, such as bge-reranker-v2-m3",
        )
    require_short(engine, query + document)
    first, second = engine.encode(query), engine.encode(document)
    ids = [*first, first[-1], *second[1:]]
    if len(ids) > engine.context:
        said = (
            f"{where} and the query have {len(ids):,} tokens; the context holds {engine.context:,}"
        )
        raise InputError("context_length_exceeded", said)
    return ids


def _result(asked: RerankBody, index: int, score: float) -> JsonObject:
    result: JsonObject = {"index": index, "relevance_score": score}
    document = {"document": {"text": asked.documents[index]}}
    return result | document if asked.return_documents else result
