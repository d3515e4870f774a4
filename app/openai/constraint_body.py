"""What an answer must be: OpenAI's ``response_format``, vLLM's ``structured_outputs``."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from app.openai.task import InputError, kind
from runtimes.errors import RequestError
from runtimes.request import Constraint

NAMES = frozenset({"response_format", "structured_outputs"})

_OBJECT = Constraint("json_schema", '{"type": "object"}')


def constraint_changes(body: Mapping[str, Any]) -> dict[str, Constraint | None]:
    """``{"constraint": ...}`` when the body says what the answer must be, else nothing; a plain
    text is None. Raises InputError."""
    changes: dict[str, Constraint | None] = {}
    wanted, outputs = body.get("response_format"), body.get("structured_outputs")
    if wanted is not None and outputs is not None:
        raise InputError(
            "invalid_value", "response_format and structured_outputs exclude each other"
        )
    if wanted is not None:
        changes["constraint"] = _of_response_format(wanted)
    if outputs is not None:
        changes["constraint"] = _of_structured_outputs(outputs)
    return changes


def schema_constraint(schema: Any, name: str) -> Constraint:
    """A JSON schema as an object, or as its text. Raises InputError."""
    if isinstance(schema, str):
        return checked("json_schema", schema, name)
    if not isinstance(schema, Mapping):
        raise InputError("wrong_type", f"{name} must be a JSON schema, not {kind(schema)}")
    return checked("json_schema", json.dumps(schema), name)


@lru_cache(maxsize=256)
def checked(what: Any, source: str, name: str) -> Constraint:
    """A constraint that can be used. Raises InputError that begins with ``name``."""
    from runtimes.constraint import grammar_of

    constraint = Constraint(what, source)
    try:
        grammar_of(constraint)
    except RequestError as error:
        raise InputError("invalid_value", f"{name}: {error}") from error
    return constraint


def _of_response_format(value: Any) -> Constraint | None:
    if not isinstance(value, Mapping):
        raise InputError("wrong_type", f"response_format must be an object, not {kind(value)}")
    wanted = value.get("type")
    if wanted == "text":
        return None
    if wanted == "json_object":
        return _OBJECT
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
    if not isinstance(value, Mapping):
        raise InputError("wrong_type", f"{name} must be an object, not {kind(value)}")
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
            raise InputError("wrong_type", f"{where} must be a list of texts, not {kind(inner)}")
        return checked("choices", json.dumps(inner), where)
    if not isinstance(inner, str):
        raise InputError("wrong_type", f"{where} must be a text, not {kind(inner)}")
    return checked(key, inner, where)
