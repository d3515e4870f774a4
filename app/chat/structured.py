"""Answers that keep to a form, a JSON schema or some choices; and JSON shown as tables."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.chat.sampling_form import parts_of
from app.here import at_home, given_text
from app.openai.constraints import constraint_changes, schema_constraint
from app.openai.validation import InputError
from runtimes.errors import RequestError
from runtimes.output import markdown
from runtimes.request import Constraint
from runtimes.untrusted import parse_json

_BEGINS = re.compile(r'\s*(\{\s*"|\[\s*\{)')  # an object, or a list of them
_MOST = 2**16  # bytes that become tables
_MOST_LINES = 500  # of tables: each is laid out as one text
_MOST_COLUMNS = 8  # of a table with an object in each row


def constraint_of(kind: str, text: str) -> Constraint | None:
    """The constraint that is typed: a schema or its file, choices with | between them, or off.
    Blocks. Raises RequestError for one that cannot be used."""
    try:
        if text.lower() in ("off", "none"):
            return None
        if kind == "choices":
            choices = [part.strip() for part in parts_of(text) if part.strip()]
            return constraint_changes({"structured_outputs": {"choice": choices}})["constraint"]
        schema = text if text.startswith("{") else given_text(at_home(text))
        return schema_constraint(schema, "the schema")
    except InputError as error:
        raise RequestError(str(error)) from error


def shown(text: str, *, ended: bool) -> str:
    """The Markdown for an answer: tables where all of it is an object or a list of objects, else
    ``text``. What may become JSON, or was cut off within it, is a block of code."""
    if not _BEGINS.match(text):
        return text
    if ended and len(text) < _MOST:
        try:
            value = parse_json(text.encode("utf-8", "replace"), _MOST)
        except json.JSONDecodeError as error:
            if error.msg == "Extra data":  # a text that only begins so
                return text
        except ValueError:  # too deep
            pass
        else:
            if isinstance(value, Mapping) or _are_objects(value):
                tables = "\n\n".join(_tables(value))
                if tables.count("\n") < _MOST_LINES:
                    return tables
    return f"```json\n{text}" + "\n```" * ended


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _tables(value: Any) -> Iterator[str]:
    """Tables of a list of objects, or of an object: its plain values, then each list in it."""
    if isinstance(value, list):
        rows = [dict(_flat(one)) for one in value]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        if len(columns) > _MOST_COLUMNS:
            yield from (part for one in value for part in _tables(one))
        else:
            yield _table(columns, [[row.get(name, "") for name in columns] for row in rows])
        return
    fields = dict(_flat(value))
    lists = {name: inner for name, inner in fields.items() if _are_objects(inner)}
    if plain := [pair for pair in fields.items() if pair[0] not in lists]:
        yield _table(("Field", "Value"), plain)
    for name, inner in lists.items():
        yield f"**{markdown(name)}**"
        yield from _tables(inner)


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Fields, those of an inner object by ``outer.inner``."""
    for name, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{before}{name}.")
        else:
            yield f"{before}{name}", inner


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_cell(one) for one in row] for row in rows)]
    lines[0] = [markdown(name) for name in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, list) and not any(isinstance(one, (list, dict)) for one in value):
        return ", ".join(map(_cell, value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return markdown(text)
