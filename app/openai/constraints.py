"""Constraints on an answer: from ``response_format``, ``structured_outputs``, or a JSON schema; and
schemas of tools."""

import json
import re
from collections.abc import Mapping
from typing import Any

from app.openai.validation import (
    Given,
    InputError,
    JsonObject,
    check_bounds,
    check_count,
    require_object,
    wrong_kind,
)
from runtimes.errors import RequestError
from runtimes.grammars import MOST_CHOICES, SCHEMA, grammar_of
from runtimes.request import Constraint


def constraint_changes(body: Given) -> dict[str, Constraint | None]:
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


# Schemas of tools that can be followed in part. A client checks what a tool is given by itself:
# where a schema has a keyword that the grammar does not know, calls are better than none.

# Keywords that llguidance does not know, and formats of texts.
UNKNOWN = frozenset(
    "propertyNames not uniqueItems if then else contains minContains maxContains dependentRequired"
    " dependentSchemas dependencies unevaluatedItems unevaluatedProperties $dynamicRef"
    " $dynamicAnchor $recursiveRef".split()
)
FORMATS = frozenset(
    "date-time time date duration email hostname ipv4 ipv6 uuid uri unknown".split()
)
# What regular expressions of Rust lack: looks around, and repeats of what a group has matched.
_UNKNOWN_PATTERN = re.compile(r"\(\?<?[=!]|\\[1-9]")
_SCHEMAS = frozenset("items additionalProperties additionalItems".split())  # each a schema,
_LISTS = frozenset("anyOf allOf oneOf prefixItems items".split())  # a list of them,
_MAPS = frozenset("properties patternProperties $defs definitions".split())  # or by name


def followed(schema: Given, name: str) -> tuple[Given, list[str]]:
    """``schema`` as far as it can be followed, and the places of what is left out of it, which
    begin with ``name``. Raises InputError for a schema that is wrong."""
    try:
        schema_constraint(schema, name)
    except InputError:
        left_out: list[str] = []
        looser = _loosened(schema, name, left_out)
        if not left_out:
            raise
        schema_constraint(looser, name)
        return looser, left_out
    return schema, []


def _loosened(schema: Any, at: str, left_out: list[str]) -> Any:
    """``schema`` without what llguidance does not know."""
    if not isinstance(schema, Mapping):
        return schema
    looser: JsonObject = {}
    for key, value in schema.items():
        where = f"{at}.{key}"
        if _is_unknown(schema, key, value):
            left_out.append(where)
        elif key in _MAPS and isinstance(value, Mapping):
            inner = value.items()
            looser[key] = {one: _loosened(of, f"{where}.{one}", left_out) for one, of in inner}
        elif key in _LISTS and isinstance(value, list):
            looser[key] = [_loosened(of, f"{where}[{i}]", left_out) for i, of in enumerate(value)]
        else:
            looser[key] = _loosened(value, where, left_out) if key in _SCHEMAS else value
    if "oneOf" in looser and "anyOf" not in looser:  # that no two hold is not to be shown here
        left_out.append(f"{at}.oneOf")
        looser = {"anyOf" if key == "oneOf" else key: value for key, value in looser.items()}
    return looser


def _is_unknown(schema: Given, key: str, value: Any) -> bool:
    if key in ("minProperties", "maxProperties"):  # known only where all properties are required
        named, required = schema.get("properties"), schema.get("required")
        return isinstance(named, Mapping) and not (
            isinstance(required, list) and all(one in required for one in named)
        )
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    if key == "pattern":
        return isinstance(value, str) and _UNKNOWN_PATTERN.search(value) is not None
    return key in UNKNOWN
