"""The lines of a journal: headers, finished rows, and notes on the runs that wrote them.

The format is JSON lines. A header is ``{"ingot":"batch-journal","version":3,"settings":{...}}``; a
row ``{"key":...,"index":...,"ok":...,"answer":{...}}``; a note has its kind as ``ingot``. Each line
ends with ``"crc"``, its seal: the CRC-32 of what stands before it. Version 2 had no seals; a
journal that was begun so continues with a header of version 3.

A run begins with the note ``batch-run``: ``at`` (Unix seconds), ``host`` and ``pid`` of the process
and ``born`` (when it was started), the ``command`` (the arguments after ``ingot``) and the
``folder`` that it was started in, ``rows`` of the input's part, ``input_rows`` of all of it,
``invalid`` and ``reused`` among them, ``shard`` (I/N or null), ``format`` of the output, ``input``.
While it runs, ``batch-left`` says how long it will take: ``at`` and the figures of ``left_json``.
It ends with ``batch-end`` unless it was killed: ``at`` and ``unfinished`` (rows without a result).

A line whose seal is wrong or missing says nothing. It stays where it is: nothing is ever cut out.
"""

import json
import os
import re
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.output.records import exact_line
from app.batch.settings import KEY_BYTES
from app.openai.answer import is_answer, is_count, is_number
from runtimes.machine.processes import birth
from runtimes.untrusted import Bounds, excess

VERSION = 3
VERSIONS = frozenset({2, VERSION})
HEADER = "batch-journal"
RUN, END, DAMAGE, LEFT = "batch-run", "batch-end", "batch-damage", "batch-left"

_SEAL = b',"crc":"'
_SEAL_BYTES = len(_SEAL) + 8 + len(b'"}\n')
INDEX = re.compile(rb'"index":(\d{1,18})')
MOST_LINE = 256 * 2**20  # bytes
_SHOWN = 5
_DEEP = Bounds(depth=64, values=2**31, characters=2**40)  # what is large is only long


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line that says nothing any more: its ``number`` from 1, its ``offset`` in bytes."""

    number: int
    offset: int
    header: bool  # whether it seems to have been one
    index: int | None  # of the row whose record it seems to have been
    whole: bool  # False for a last line without its newline

    def __str__(self) -> str:
        what = "is damaged" if self.whole else "is not whole, as after a crash of the machine"
        seems = ""
        if self.header:
            seems = " (the job's settings)"
        elif self.index is not None:
            seems = f" (it seems to be the answer of index {self.index})"
        return f"line {self.number} {what}{seems}"


LEFT_OUT = "this is left out, and stays in the file; rows without another record are computed again"
LOST = "the next run leaves this out; it computes again the rows that have no other record"


def told(path: Path, damaged: Sequence[Damaged], then: str) -> list[str]:
    """What is said of damaged lines, and what happens ``then``; empty for none."""
    if not damaged:
        return []
    lines = [f"{path}: {one}" for one in damaged[:_SHOWN]]
    if len(damaged) > _SHOWN:
        lines.append(f"{path}: and {len(damaged) - _SHOWN:,} more damaged lines")
    return [*lines, f"{path}: {then}"]


def run_note(**job: int | str | None) -> dict[str, Any]:
    """The values of a ``batch-run`` note of this process; ``job`` has those from ``rows`` on."""
    return {
        "at": round(time.time(), 3),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": birth(os.getpid()),
        "command": sys.argv[1:],
        "folder": os.getcwd(),
        **job,
    }


def end_note(unfinished: int) -> dict[str, Any]:
    """The values of a ``batch-end`` note."""
    return {"at": round(time.time(), 3), "unfinished": unfinished}


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line with its offset in bytes; the last may lack its newline, and one that is longer
    than any record comes in pieces. Raises OSError."""
    offset = 0
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", buffering=1 << 20, opener=lambda name, _: os.open(name, flags)) as file:
        for line in iter(lambda: file.readline(MOST_LINE), b""):
            yield offset, line
            offset += len(line)


def sealed_line(record: dict[str, Any]) -> bytes:
    """A record as a line with its seal."""
    body = exact_line(record)[: -len(b"}\n")]
    return body + _SEAL + b'%08x"}\n' % zlib.crc32(body)


def sealed(line: bytes) -> bool | None:
    """Whether the seal is right; None if there is none."""
    body, seal = line[:-_SEAL_BYTES], line[-_SEAL_BYTES:]
    if not (seal.startswith(_SEAL) and seal.endswith(b'"}\n')):
        return None
    return seal[len(_SEAL) : -len(b'"}\n')] == b"%08x" % zlib.crc32(body)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """A whole journal line, or None for one that is torn or not ours: all that a reader takes from
    it is of its kind, whoever wrote it. A wrong seal is no seal."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if line.count(b"[") + line.count(b"{") > _DEEP.depth and excess(value, _DEEP):
        return None
    kind = value.get("ingot")
    if kind == HEADER:
        return value if _is_header(value) else None
    if kind is not None:
        if not isinstance(kind, str) or not _is_note(value, kind):
            return None
        return value if sealed(line) or kind in (RUN, END) else None
    key, index, good, answer = (value.get(name) for name in ("key", "index", "ok", "answer"))
    if not (isinstance(key, str) and is_count(index, 2**62) and isinstance(good, bool)):
        return None
    try:
        whole = len(bytes.fromhex(key)) == KEY_BYTES
    except ValueError:
        return None
    return value if whole and isinstance(answer, dict) and is_answer(answer) else None


def _is_header(value: dict[str, Any]) -> bool:
    settings = value.get("settings")
    if not isinstance(settings, dict) or not is_count(value.get("version", 0)):
        return False
    return isinstance(settings.get("sampling", {}), dict)


def _is_note(value: dict[str, Any], kind: str) -> bool:
    """Whether what is read of a note is there, and of its kind."""
    needed = _NEEDED.get(kind, frozenset())
    checks = {**_CHECKS, **_SECONDS} if kind == LEFT else _CHECKS
    return needed <= value.keys() and all(
        checks[name](found) for name, found in value.items() if name in checks
    )


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _number_or_none(value: Any) -> bool:
    return value is None or is_number(value)


_NEEDED = {
    RUN: frozenset({"at", "rows", "invalid", "reused"}),
    END: frozenset({"at", "unfinished"}),
    LEFT: frozenset({"at"}),
}
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "at": lambda value: is_number(value, 1e11),  # the year 5138
    **dict.fromkeys(("rows", "input_rows", "invalid", "reused", "unfinished"), is_count),
    **dict.fromkeys(("host", "shard", "format", "input", "folder"), _text_or_none),
    "command": lambda value: value is None or _texts(value),
    "born": _number_or_none,
    "pid": lambda value: value is None or is_count(value),
    "offsets": lambda value: isinstance(value, list) and set(map(type, value)) <= {int},
}
_SECONDS = dict.fromkeys(("left_s", "left_least_s", "left_most_s"), _number_or_none)
