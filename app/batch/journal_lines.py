"""The lines of a journal: a header, finished rows, and notes on the runs that wrote them.

The format is JSON lines. A header is ``{"ingot":"batch-journal","version":2,"settings":{...}}``; a
row ``{"key":...,"index":...,"ok":...,"answer":{...}}``; a note has one of ``NOTES`` as ``ingot``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.batch.settings import KEY_BYTES

VERSION = 2
HEADER = "batch-journal"
RUN, END = "batch-run", "batch-end"
NOTES = frozenset({RUN, END})


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line with its offset in bytes; the last may lack its newline."""
    offset = 0
    with path.open("rb", buffering=1 << 20) as file:
        for line in file:
            yield offset, line
            offset += len(line)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """A whole journal line, or None for one that is torn or not ours."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    kind = value.get("ingot")
    if kind == HEADER:
        return value if isinstance(value.get("settings"), dict) else None
    if kind is not None:
        return value if kind in NOTES else None
    key, index, good, answer = (value.get(name) for name in ("key", "index", "ok", "answer"))
    if not (isinstance(key, str) and isinstance(index, int) and isinstance(good, bool)):
        return None
    try:
        whole = len(bytes.fromhex(key)) == KEY_BYTES
    except ValueError:
        return None
    return value if whole and isinstance(answer, dict) else None
