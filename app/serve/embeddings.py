"""OpenAI's /v1/embeddings."""

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from app.openai.limits import MOST_INPUTS
from app.openai.task import InputError, as_unicode, kind, require_object
from app.serve.generate import Generator, asked_model, json_body, while_connected
from app.serve.openapi import json_body as body_schema

Input = str | list[int]

_SCHEMA = {
    "type": "object",
    "required": ["input"],
    "properties": {
        "model": {"type": "string"},
        "input": {"anyOf": [{"type": "string"}, {"type": "array"}]},
        "encoding_format": {"enum": ["float", "base64"]},
        "dimensions": {"type": "integer", "minimum": 1},
    },
}
_KNOWN = frozenset({*_SCHEMA["properties"], "user"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for."""

    inputs: list[Input]
    packed: bool  # as base64 of float32
    dimensions: int | None = None


def routes(generator: Generator) -> APIRouter:
    """The only one."""
    router = APIRouter()

    @router.post("/v1/embeddings", openapi_extra=body_schema(_SCHEMA))
    async def embeddings(request: Request) -> Response:
        """Vectors of texts."""
        body = await json_body(request)
        name, asked = asked_model(body), read_body(body)
        vectors, tokens, model = [], 0, ""
        for one in asked.inputs:  # each by itself: others' steps come between
            work = generator.in_thread(partial(_embed, generator, name, one))
            vector, count, model = await while_connected(request, work)
            vectors.append(_cut(vector, asked.dimensions))
            tokens += count
        data = [
            {"object": "embedding", "index": index, "embedding": _packed(v) if asked.packed else v}
            for index, v in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "data": data, "model": model, "usage": usage})

    return router


def read_body(body: Any) -> Asked:
    """Raises InputError naming what is missing, wrong or not supported."""
    require_object(body, "body")
    for other in body.keys() - _KNOWN:
        raise InputError("unsupported_parameter", f"{other[:60]} is not supported")
    value, form, size = (body.get(key) for key in ("input", "encoding_format", "dimensions"))
    if value is None:
        raise InputError("missing_parameter", "body has no 'input'")
    if form not in (None, "float", "base64"):
        raise InputError("invalid_value", "encoding_format must be float or base64")
    if size is not None and not (isinstance(size, int) and not isinstance(size, bool) and size > 0):
        raise InputError("invalid_value", "dimensions must be a whole number above 0")
    several = isinstance(value, list) and value and isinstance(value[0], (str, list))
    inputs = value if several else [value]
    if len(inputs) > MOST_INPUTS:
        said = f"input has {len(inputs):,} texts, above {MOST_INPUTS:,}"
        raise InputError("invalid_value", said)
    read = [_input(one, f"input.{n}" if several else "input") for n, one in enumerate(inputs)]
    return Asked(read, form == "base64", size)


def _input(value: Any, where: str) -> Input:
    if isinstance(value, str) and value:
        return as_unicode(value, where)
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return value
    what = "empty" if value in ("", []) else kind(value)
    raise InputError("wrong_type", f"{where} must be a text or a list of token ids; it is {what}")


def _embed(generator: Generator, name: str | None, value: Input) -> tuple[list[float], int, str]:
    with generator.pool.lease(name) as served:
        ids = served.engine.encode(value) if isinstance(value, str) else value
        return served.engine.embed(ids), len(ids), served.name


def _cut(vector: list[float], size: int | None) -> list[float]:
    """Its first numbers, of length 1 again, as OpenAI does."""
    if size is None or size == len(vector):
        return vector
    if size > len(vector):
        said = f"dimensions is {size:,}; this model's vectors have {len(vector):,}"
        raise InputError("invalid_value", said)
    length = sum(one * one for one in vector[:size]) ** 0.5 or 1.0
    return [one / length for one in vector[:size]]


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
