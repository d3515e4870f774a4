"""JSON lines as bytes, and files that appear whole or not at all."""

from __future__ import annotations

import json
from typing import Any


def dump_line(value: dict[str, Any]) -> bytes:
    """One JSON line in UTF-8, readable as it is; escaped only where UTF-8 cannot hold it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # a row's id may hold half a surrogate pair
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
