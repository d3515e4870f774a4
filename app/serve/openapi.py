"""Bodies as /openapi.json describes them. They are read by `app.openai`, not by Pydantic: what is
wrong with one is said in OpenAI's form of an error."""

from dataclasses import fields
from typing import Any

from app.openai.request import Generating
from runtimes.request import SamplingParams

_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "int | None": "integer"}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "user", "assistant"]},
        "content": {"type": "string"},
    },
}
_PROMPTS: dict[Generating, dict[str, Any]] = {
    "chat": {"messages": {"type": "array", "minItems": 1, "items": _MESSAGE}},
    "completions": {"prompt": {"type": "string", "minLength": 1}},
}


def body_of(endpoint: Generating, **more: Any) -> dict[str, Any]:
    """For ``openapi_extra`` of a route; ``more`` are further properties."""
    prompt = _PROMPTS[endpoint]
    own = {
        item.name: {"type": _TYPES[str(item.type)]}
        for item in fields(SamplingParams)
        if str(item.type) in _TYPES and item.name != "prompt_logprobs"  # which ``echo`` gives
    }
    stop = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    known = {**prompt, "model": {"type": "string"}, **own, "stop": stop, **more}
    if endpoint == "completions":
        known["logprobs"] = {"type": "integer"}
    else:
        del known["best_of"]
    return json_body({"type": "object", "required": list(prompt), "properties": known})


def json_body(schema: dict[str, Any]) -> dict[str, Any]:
    """For ``openapi_extra`` of a route."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


ANY_BODY = json_body({"type": "object"})
