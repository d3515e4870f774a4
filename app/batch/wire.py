"""JSON lines as bytes, and files that appear whole or not at all."""

from __future__ import annotations

import json
from typing import Any

# Making an encoder takes longer than most lines.
_READABLE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ESCAPED = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def dump_line(value: dict[str, Any]) -> bytes:
    """One JSON line in UTF-8, readable as it is; escaped only where UTF-8 cannot hold it."""
    try:
        return _READABLE.encode(value).encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # a row's id may hold half a surrogate pair
        return _ESCAPED.encode(value).encode("ascii") + b"\n"
