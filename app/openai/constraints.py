"""Constraints on an answer: from ``response_format``, ``structured_outputs``, or a JSON schema."""

import json
from collections.abc import Mapping
from typing import Any

from app.openai.validation import (
    InputError,
    check_bounds,
    check_count,
    require_object,
    wrong_kind,
)
from runtimes.errors import RequestError
from runtimes.grammars import MOST_CHOICES, SCHEMA, grammar_of
from runtimes.request import Constraint


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
    require_object(schema, name, "a JSON schema")
    check_bounds(schema, name, SCHEMA)
    return _checked("json_schema", json.dumps(schema), name)


def _checked(what: Any, source: str, name: str) -> Constraint:
    """A constraint that can be used. Raises InputError that begins with ``name``."""
    constraint = Constraint(what, source)
    try:
        grammar_of(constraint)
    except RequestError as error:
        raise InputError("invalid_value", f"{name}: {error}") from error
    return constraint


def _of_response_format(value: Any) -> Constraint | None:
    require_object(value, "response_format")
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
    require_object(value, name)
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
            raise wrong_kind(where, "a list of texts", inner)
        check_count(len(inner), where, "choices", MOST_CHOICES)
        return _checked("choices", json.dumps(inner), where)
    if not isinstance(inner, str):
        raise wrong_kind(where, "a text", inner)
    return _checked(key, inner, where)
