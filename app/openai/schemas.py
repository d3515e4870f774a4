"""Schemas of tools that can be followed in part. A client checks what a tool is given by itself:
where a schema has a keyword that the grammar does not know, calls are better than none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.openai.constraints import schema_constraint
from app.openai.validation import InputError

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


def followed(schema: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], list[str]]:
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
    looser: dict[str, Any] = {}
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


def _is_unknown(schema: Mapping[str, Any], key: str, value: Any) -> bool:
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
