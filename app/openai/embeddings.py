"""OpenAI's /v1/embeddings: its body as a task, and the body of its answer."""

import base64
import struct
from collections.abc import Sequence
from typing import Any

from app.openai.answer import Answer, figures_of
from app.openai.task import Embed, Task
from app.openai.validation import (
    MOST_INPUTS,
    InputError,
    JsonObject,
    as_unicode,
    check_bounds,
    check_count,
    kind,
    require_object,
)
from runtimes.errors import RequestError
from runtimes.request import Completion

# As JSON schemas.
FIELDS: JsonObject = {
    "model": {"type": "string"},
    "input": {"anyOf": [{"type": "string"}, {"type": "array"}]},
    "encoding_format": {"enum": ["float", "base64"]},
    "dimensions": {"type": "integer", "minimum": 1},
}
_KNOWN = frozenset({*FIELDS, "user"})


def embedding_task(body: Any) -> Task:
    """A part for each text. Raises InputError naming what is missing, wrong or not supported."""
    require_object(body, "body")
    check_bounds(body, "body")
    for other in body.keys() - _KNOWN:
        raise InputError("unsupported_parameter", f"{other[:60]} is not supported")
    value, form, size = (body.get(key) for key in ("input", "encoding_format", "dimensions"))
    if value is None:
        raise InputError("missing_parameter", "body has no 'input'")
    if form not in (None, "float", "base64"):
        raise InputError("invalid_value", "encoding_format must be float or base64")
    if size is not None and (type(size) is not int or size < 1):
        raise InputError("invalid_value", "dimensions must be a whole number above 0")
    several = isinstance(value, list) and value and isinstance(value[0], (str, list))
    inputs = value if several else [value]
    check_count(len(inputs), "input", "texts", MOST_INPUTS)
    how = Embed(size, packed=form == "base64")
    parts = [
        _part(one, f"input.{number}" if several else "input", how)
        for number, one in enumerate(inputs)
    ]
    return Task(parts=tuple(parts), raw=True)


def _part(value: Any, where: str, how: Embed) -> Task:
    if isinstance(value, str) and value:
        return Task(turns=(as_unicode(value, where),), raw=True, embed=how)
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return Task(ids=tuple(value), raw=True, embed=how)
    what = "empty" if value in ("", []) else kind(value)
    raise InputError("wrong_type", f"{where} must be a text or a list of token ids; it is {what}")


def embedded(task: Task, completions: Sequence[Completion]) -> Answer:
    """The answer to a task whose parts are texts to embed. Raises RequestError for more dimensions
    than there are."""
    vectors = [
        _short(cut(one.embedding or (), part.embed.dimensions if part.embed else None))
        for part, one in zip(task.parts, completions, strict=True)
    ]
    several = vectors if len(vectors) > 1 else None
    return Answer(embedding=vectors[0], embeddings=several, **figures_of(completions))


def cut(vector: Sequence[float], size: int | None) -> Sequence[float]:
    """Truncate a vector to ``size`` numbers and normalise it to length 1, as OpenAI's API does."""
    if size is None or size == len(vector):
        return vector
    if size > len(vector):
        raise RequestError(f"dimensions is {size:,}; this model's vectors have {len(vector):,}")
    length = sum(one * one for one in vector[:size]) ** 0.5 or 1.0
    return [one / length for one in vector[:size]]


def _short(vector: Sequence[float]) -> list[float]:
    """With no more digits than float32 has."""
    return [float(f"{one:.9g}") for one in vector]


def embeddings_body(
    vectors: Sequence[Sequence[float]], tokens: int, model: str, *, packed: bool
) -> JsonObject:
    """The list object of OpenAI's API reference."""
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(one) if packed else one}
        for index, one in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
