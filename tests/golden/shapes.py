"""Texts without what differs from run to run and from machine to machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_NAMED = r'"(?:ingot|event|code|message|object|type|role|version)": ?(?:"[^"]*"|\d+)'
_TOKEN = re.compile(rf'({_NAMED})|"(?:[^"\\]|\\.)*"(\s*:)?|-?\d+(\.\d+)?([eE][-+]?\d+)?')
_LIST = re.compile(r"\[0(,0)+\]")


def masked(text: str) -> str:
    """JSON with its keys, marks and spaces, and with what says what an object is; any other text is
    "", a number 0 or 0.0."""

    def mask(found: re.Match[str]) -> str:
        if found[0].startswith('"'):
            return found[0] if found[1] or found[2] else '""'
        return "0.0" if found[3] or found[4] else "0"

    return _LIST.sub("[0]", _TOKEN.sub(mask, text))


def shape(value: Any, *, types: bool = True) -> str:
    """A line for each key and the types of its values, in order; the entries of a list, and the
    events of a job, are taken together. Without ``types`` only the keys."""
    return "".join(f"{line}\n" for line in dict.fromkeys(_lines(value, "", types)))


def _lines(value: Any, at: str, types: bool) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _lines(entry, f"{at}.{key}" if at else key, types)
    elif isinstance(value, list) and value:
        for entry in value:
            yield from _lines(entry, f"{at}[]", types)
    else:
        yield f"{at}: {_name(value)}" if types else at.removesuffix("[]")


def _name(value: Any) -> str:
    return {"NoneType": "null", "int": "number", "float": "number", "str": "text"}.get(
        type(value).__name__, type(value).__name__
    )
