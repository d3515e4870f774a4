"""OpenAI's /v1/embeddings, and /v1/rerank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from app.openai.embeddings import FIELDS, cut, embedding_task, embeddings_body
from app.openai.prepare import prepare
from app.openai.task import Task
from app.openai.validation import (
    MOST_INPUTS,
    InputError,
    as_unicode,
    check_count,
    kind,
    require_object,
)
from app.prompts import require_short
from app.serve.bodies import body_schema, json_body, read_task
from app.serve.generate import Generator, asked_model, while_connected
from app.serve.options import MOST_IDS
from app.serve.pool import Served
from runtimes.request import SamplingParams
from runtimes.worker.engine import WorkerEngine

# The body of /v1/rerank is Jina's and Cohere's.
_FIELDS: dict[str, Any] = {
    "model": {"type": "string"},
    "query": {"type": "string"},
    "documents": {"type": "array", "items": {"type": ["string", "object"]}},
    "top_n": {"type": "integer", "minimum": 1},
    "return_documents": {"type": "boolean"},
}


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

    @router.post("/v1/rerank", openapi_extra=body_schema(_FIELDS, "query", "documents"))
    async def rerank(request: Request) -> Response:
        """The documents by how well they answer the query, from 1 to 0."""
        body = await json_body(request)
        name, asked_of = asked_model(body), await read_task(request, partial(read_body, body))
        asked = await generator.in_thread(asked_of)
        del body  # is not needed any more, and may be large
        return JSONResponse(await while_connected(request, _rank(generator, name, asked)))

    return router


async def _answer(generator: Generator, name: str | None, texts: Sequence[Task]) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A query and documents to rank."""

    query: str
    documents: list[str]
    most: int | None = None  # results that are wanted
    told: bool = False  # with the documents' texts


def read_body(body: Any) -> RerankRequest:
    """Raises InputError naming what is missing, wrong or not supported."""
    require_object(body, "body")
    for other in body.keys() - _FIELDS:
        raise InputError("unsupported_parameter", f"{other[:60]} is not supported")
    query, documents, most = (body.get(key) for key in ("query", "documents", "top_n"))
    if not isinstance(documents, list) or not documents:
        raise InputError("wrong_type", "documents must be a list of texts with at least one")
    check_count(len(documents), "documents", "texts", MOST_INPUTS)
    if most is not None and (type(most) is not int or most < 1):
        raise InputError("invalid_value", "top_n must be a whole number above 0")
    told = body.get("return_documents") or False
    if not isinstance(told, bool):
        raise InputError("wrong_type", "return_documents must be true or false")
    texts = [_text(_of(one), f"documents.{number}") for number, one in enumerate(documents)]
    return RerankRequest(_text(query, "query"), texts, most, told)


def _of(document: Any) -> Any:
    return document.get("text") if isinstance(document, dict) else document


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        found = "empty" if value == "" else kind(value)
        raise InputError("wrong_type", f"{where} must be a text; it is {found}")
    return as_unicode(value, where)


async def _rank(generator: Generator, name: str | None, asked: RerankRequest) -> dict[str, Any]:
    scores, tokens = [], 0
    async with generator.place(name) as served:
        for number, document in enumerate(asked.documents):  # others' work comes between
            where = f"documents.{number}"
            pair = partial(_pair, served.engine, asked.query, document, where)
            ids = await generator.in_thread(pair, served.name)
            scores.append(_sigmoid((await generator.embedded(served, ids))[0]))
            tokens += len(ids)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.most]
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


def _result(asked: RerankRequest, index: int, score: float) -> dict[str, Any]:
    result: dict[str, Any] = {"index": index, "relevance_score": score}
    return {**result, "document": {"text": asked.documents[index]}} if asked.told else result
