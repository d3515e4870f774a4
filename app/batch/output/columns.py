"""Records as rows of a table: which columns there are, of which type, and what is in a cell."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from app.openai.answer import RECORD_NAMES

Kind = Literal["empty", "boolean", "integer", "number", "text", "json"]

# Objects of the record that become a column for each of their values, such as usage.prompt_tokens.
_SPREAD = frozenset({"usage", "timings", "error"})
_INT64 = 2**63


def cells_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without nesting. Lists and objects of the input stay what they are."""
    cells: dict[str, Any] = {}
    for name, value in record.items():
        if name in _SPREAD and isinstance(value, Mapping):
            cells.update({f"{name}.{part}": inner for part, inner in value.items()})
        else:
            cells[name] = value
    return cells


def kind_of(value: Any) -> Kind:
    """The type of a cell by itself."""
    match value:
        case None:
            return "empty"
        case bool():
            return "boolean"
        case int():
            return "integer" if -_INT64 <= value < _INT64 else "json"
        case float():
            return "number"
        case str():
            return "text"
        case _:
            return "json"


def columns_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Kind]:
    """Every column of the records with the type that holds all of its cells: whole numbers beside
    others are numbers, cells of types that differ are JSON. The columns of the answer stand behind
    those of the input, errors last, whichever came first."""
    columns: dict[str, Kind] = {}
    for record in records:
        for name, value in cells_of(record).items():
            columns[name] = _both(columns.get(name, "empty"), kind_of(value))
    return {name: columns[name] for name in sorted(columns, key=_rank)}


def _rank(name: str) -> int:
    if name in ("id", "index"):
        return 0
    head, dot, _ = name.partition(".")
    if dot and head in _SPREAD:
        return 3 if head == "error" else 2
    return 2 if name in RECORD_NAMES else 1


def as_kind(value: Any, kind: Kind) -> Any:
    """A cell as its column's type wants it; JSON is a text."""
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return float(value) if kind == "number" else value


def _both(a: Kind, b: Kind) -> Kind:
    if a == b or b == "empty":
        return a
    if a == "empty":
        return b
    return "number" if {a, b} == {"integer", "number"} else "json"
