"""The body of a request to one of OpenAI's endpoints. Whatever it asks for and this engine lacks
makes it invalid by name.

Accepted beside OpenAI's parameters: ``top_k``, ``min_p``, ``repetition_penalty``, ``min_tokens``,
``ignore_eos`` and ``structured_outputs``, named as vLLM names them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Literal

from app.openai.task import InputError, Task, as_unicode, kind, shown, task_at
from runtimes.errors import RequestError
from runtimes.request import Constraint, SamplingParams

Endpoint = Literal["chat", "completions"]

ENDPOINTS: dict[str, Endpoint] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
_PROMPT = {"chat": "messages", "completions": "prompt"}
# Who asks, what for and how it is billed: nothing that changes an answer.
_IGNORED = frozenset(
    "model user metadata store service_tier safety_identifier prompt_cache_key".split()
)
# What is not supported, with the values that ask for nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "modalities": (["text"],),
    "echo": (False,),
    "suffix": ("",),
}
_MOST_INT = 2**31 - 1
_MOST_SEED = 2**63
_MOST_STOPS = 64
_MOST_BIASES = 1024


def body_task(body: Any, endpoint: Endpoint, defaults: SamplingParams) -> Task:
    """The task of a request's ``body``, its parameters on top of ``defaults``.

    Raises InputError naming what is missing, wrong or not supported.
    """
    _object(body, "body")
    name = _PROMPT[endpoint]
    known = _NAMES[endpoint] | _IGNORED | {name}
    for other, value in body.items():
        if other not in known and value is not None and value not in _IDLE.get(other, ()):
            said = f"{other}: {shown(value)}" if other in _IDLE else other[:60]
            raise InputError("unsupported_parameter", f"{said} is not supported")
    prompt = body.get(name)
    if prompt is None:
        raise InputError("missing_parameter", f"body has no {name!r}")
    if endpoint == "completions":
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise InputError(
                "unsupported_parameter",
                "prompt must be a text: lists of prompts and token ids are not supported",
            )
    elif not isinstance(prompt, list) or any(isinstance(part, str) for part in prompt):
        raise InputError("wrong_type", "messages must be a list of messages with roles")
    task = task_at(prompt, f"body.{name}")
    sampling = sampling_of(body, endpoint, defaults)
    return Task(task.history, task.turns, sampling, raw=endpoint == "completions")


def _wrong(name: str, wanted: str, value: Any) -> InputError:
    """A float is shown as it is where a whole number or a switch is wanted."""
    found = str(value)[:40] if isinstance(value, float) else kind(value)
    return InputError("wrong_type", f"{name} must be {wanted}, not {found}")


def _object(value: Any, name: str, wanted: str = "an object") -> None:
    if not isinstance(value, Mapping):
        raise InputError("wrong_type", f"{name} must be {wanted}, not {kind(value)}")


# Sampling parameters


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(name, "a number", value)
    if abs(value) > _MOST_INT:
        raise InputError("invalid_value", f"{name} is out of all bounds: {str(value)[:40]}")
    return float(value)


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, "a whole number", value)
    if name != "seed":
        _number(value, name)
    elif not -_MOST_SEED <= value < _MOST_SEED:
        raise InputError("invalid_value", f"{name} must fit 64 bits: {str(value)[:40]}")
    return value


def _boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _stop(value: Any, name: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError("wrong_type", f"{name} must be a string or a list of strings")
    if len(texts) > _MOST_STOPS:
        raise InputError("invalid_value", f"{name} has {len(texts):,} texts, above {_MOST_STOPS}")
    return tuple(as_unicode(text, name) for text in texts)


def _logit_bias(value: Any, name: str) -> tuple[tuple[int, float], ...]:
    _object(value, name, "an object from token ids to numbers")
    if len(value) > _MOST_BIASES:
        raise InputError("invalid_value", f"{name} has {len(value):,} ids, above {_MOST_BIASES}")
    pairs = []
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise InputError("invalid_value", f"{name}: {token[:40]!r} is not a token id")
        amount = _number(bias, f"{name}.{token}")
        if abs(amount) > 100:
            raise InputError("invalid_value", f"{name}.{token} must be from -100 to 100")
        pairs.append((int(token), amount))
    return tuple(sorted(pairs))


_READERS = {"int": _integer, "float": _number, "bool": _boolean}
_OWN_READERS = {"stop": _stop, "seed": _integer, "logit_bias": _logit_bias}
_READ_APART = {"logprobs", "top_logprobs", "best_of", "constraint"}
# A body may have each parameter of ours: the field that it becomes, and what reads it. A later one
# of two for the same field wins.
_PLAIN: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    item.name: (item.name, _OWN_READERS.get(item.name) or _READERS[str(item.type)])
    for item in fields(SamplingParams)
    if item.name not in _READ_APART
} | {"max_completion_tokens": ("max_tokens", _integer)}
_BOTH = _PLAIN.keys() | {"logprobs", "response_format", "structured_outputs"}
_NAMES: dict[Endpoint, frozenset[str]] = {
    "chat": frozenset(_BOTH | {"top_logprobs"}),
    "completions": frozenset(_BOTH - {"max_completion_tokens"} | {"best_of"}),
}


def sampling_of(
    body: Mapping[str, Any], endpoint: Endpoint, defaults: SamplingParams
) -> SamplingParams | None:
    """The body's own parameters on top of ``defaults``; None where it has none.
    ``null`` is ignored.

    Raises InputError naming the parameter that has a wrong type or value.
    """
    changes: dict[str, Any] = {}
    for name, (field, read) in _PLAIN.items():
        if name in _NAMES[endpoint] and body.get(name) is not None:
            changes[field] = read(body[name], name)
    changes.update(_logprobs(body, endpoint))
    wanted = constraint_changes(body)
    if wanted.get("constraint", defaults.constraint) != defaults.constraint:
        changes.update(wanted)
    if endpoint == "completions" and body.get("best_of") is not None:
        changes["best_of"] = _integer(body["best_of"], "best_of")
    if not changes:
        return None
    try:
        return _changed(defaults, tuple(changes.items()))
    except RequestError as error:
        raise InputError("invalid_value", str(error)) from error


@lru_cache(maxsize=256)
def _changed(defaults: SamplingParams, changes: tuple[tuple[str, Any], ...]) -> SamplingParams:
    """Rows of one file mostly ask for the same, and checking it takes longer than finding it."""
    return replace(defaults, **dict(changes))


def _logprobs(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """In chat a switch and a number; for completions the number alone is the switch."""
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if endpoint == "completions":
        if wanted is None:
            return {}
        return {"logprobs": True, "top_logprobs": _integer(wanted, "logprobs")}
    changes: dict[str, Any] = {}
    if wanted is not None:
        changes["logprobs"] = _boolean(wanted, "logprobs")
    if top is not None:
        changes["top_logprobs"] = _integer(top, "top_logprobs")
        if not changes.get("logprobs"):
            raise InputError("invalid_value", "top_logprobs needs logprobs: true")
    return changes


# What an answer must be


def constraint_changes(body: Mapping[str, Any]) -> dict[str, Constraint | None]:
    """``{"constraint": ...}`` when the body says what the answer must be, else nothing; a plain
    text is None. Raises InputError."""
    wanted, outputs = body.get("response_format"), body.get("structured_outputs")
    if wanted is not None and outputs is not None:
        raise InputError(
            "invalid_value", "response_format and structured_outputs exclude each other"
        )
    if wanted is not None:
        return {"constraint": _of_response_format(wanted)}
    return {} if outputs is None else {"constraint": _of_structured_outputs(outputs)}


def schema_constraint(schema: Any, name: str) -> Constraint:
    """A JSON schema as an object, or as its text. Raises InputError."""
    if isinstance(schema, str):
        return _checked("json_schema", schema, name)
    _object(schema, name, "a JSON schema")
    return _checked("json_schema", json.dumps(schema), name)


def _checked(what: Any, source: str, name: str) -> Constraint:
    """A constraint that can be used. Raises InputError that begins with ``name``."""
    from runtimes.checks import grammar_of

    constraint = Constraint(what, source)
    try:
        grammar_of(constraint)
    except RequestError as error:
        raise InputError("invalid_value", f"{name}: {error}") from error
    return constraint


def _of_response_format(value: Any) -> Constraint | None:
    _object(value, "response_format")
    wanted = value.get("type")
    if wanted == "text":
        return None
    if wanted == "json_object":
        return Constraint("json_schema", '{"type": "object"}')
    if wanted == "json_schema":
        inner = value.get("json_schema")
        if not isinstance(inner, Mapping) or inner.get("schema") is None:
            raise InputError("missing_parameter", "response_format.json_schema must have a schema")
        return schema_constraint(inner["schema"], "response_format.json_schema.schema")
    raise InputError(
        "invalid_value",
        f"response_format.type must be text, json_object or json_schema, not {str(wanted)[:40]!r}",
    )


def _of_structured_outputs(value: Any) -> Constraint:
    name = "structured_outputs"
    _object(value, name)
    given = {key: inner for key, inner in value.items() if inner is not None}
    if len(given) != 1 or not given.keys() <= {"json", "regex", "choice", "grammar"}:
        raise InputError(
            "invalid_value", f"{name} must have one of json, regex, choice and grammar"
        )
    [(key, inner)] = given.items()
    where = f"{name}.{key}"
    if key == "json":
        return schema_constraint(inner, where)
    if key == "choice":
        if not isinstance(inner, list):
            raise _wrong(where, "a list of texts", inner)
        return _checked("choices", json.dumps(inner), where)
    if not isinstance(inner, str):
        raise _wrong(where, "a text", inner)
    return _checked(key, inner, where)
