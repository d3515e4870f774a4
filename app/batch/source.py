"""The input file as a stream of rows: every line becomes a row or says what is wrong with it."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from app.batch.tasks import BadRowError, RowProblem, Task, kind, row_id, task_of, text_task
from runtimes.errors import RequestError

Format = Literal["jsonl", "text"]

_JSONL_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})
_TEXT_SUFFIXES = frozenset({".txt", ".text", ".md"})
_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
# A line is held in memory whole; one that is longer than any context must not exhaust it.
MAX_LINE = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the input. ``index`` counts rows from 0, ``line`` lines of the file from 1.

    ``fields`` are the names the row has at its top level, for messages about missing fields.
    """

    index: int
    line: int
    id: str | int
    task: Task | RowProblem
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stamp:
    """Tells whether the file changed between two readings."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Source:
    """A file of rows that can be read any number of times. ``name`` is what the user called it."""

    path: Path
    name: str
    format: Format
    field: str | None = None
    limit: int | None = None

    def rows(self) -> Iterator[Row]:
        """Every row in order, at most ``limit``. Blank lines are no rows."""
        index = 0
        with self.path.open("rb") as file:
            for number, raw in _lines(file):
                if raw is not None and not raw.strip():
                    continue
                if self.limit is not None and index >= self.limit:
                    return
                yield self._row(index, number, raw)
                index += 1

    def stamp(self) -> Stamp:
        """The file's present size and time."""
        stat = self.path.stat()
        return Stamp(stat.st_size, stat.st_mtime_ns)

    def _row(self, index: int, line: int, raw: bytes | None) -> Row:
        row: Mapping[str, Any] = {}
        try:
            if raw is None:
                raise BadRowError("line_too_long", f"the line is longer than {MAX_LINE >> 20} MiB")
            text = _decode(raw)
            if self.format == "text":
                return Row(index, line, index, text_task(text))
            row = _object(text)
            task: Task | RowProblem = task_of(row, self.field)
        except BadRowError as error:
            task = error.problem
        return Row(index, line, row_id(row, index), task, tuple(row))


@contextmanager
def open_source(
    name: str, *, format: Format | None = None, field: str | None = None, limit: int | None = None
) -> Iterator[Source]:
    """The source that the user calls ``name``: a file, or ``-`` for standard input.

    Raises RequestError when there is no such file or it is not of a kind that can be read.
    """
    if name != "-":
        yield _source(Path(name), name, Path(name).suffix.lower(), format, field, limit)
        return
    path = _spool_stdin()
    try:
        yield _source(path, "standard input", "", format, field, limit)
    finally:
        path.unlink(missing_ok=True)


def _source(
    path: Path, name: str, suffix: str, format: Format | None, field: str | None, limit: int | None
) -> Source:
    if not path.exists():
        raise RequestError(f"{name}: no such file")
    if path.is_dir():
        raise RequestError(f"{name} is a folder; name a .jsonl or .txt file")
    if not path.is_file():
        # It is read more than once, which a pipe or a device does not allow.
        raise RequestError(f"{name} is not a regular file; pipe it in and name the input -")
    try:
        found = format or _detect(path, name, suffix)
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error.strerror or error}") from error
    if found == "text" and field is not None:
        raise RequestError(f"--field is for JSONL, and {name} is read as plain text (see --format)")
    return Source(path, name, found, field, limit)


def _spool_stdin() -> Path:
    """Standard input as a temporary file: a job reads its input more than once."""
    with tempfile.NamedTemporaryFile(prefix="ingot-stdin-", delete=False) as file:
        path = Path(file.name)
        try:
            shutil.copyfileobj(sys.stdin.buffer, file)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return path


def _detect(path: Path, name: str, suffix: str) -> Format:
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith(_UTF16_BOMS):
        raise RequestError(f"{name} is UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    start = head.removeprefix(_UTF8_BOM).lstrip()[:1]
    if suffix == ".json" and start == b"[":
        raise RequestError(
            f"{name} holds one JSON list; JSONL has one object per line (jq -c '.[]' converts it)"
        )
    if suffix in _JSONL_SUFFIXES:
        return "jsonl"
    if suffix in _TEXT_SUFFIXES:
        return "text"
    return "jsonl" if start == b"{" else "text"


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines without their ends; None for one that is too long to hold."""
    number = 0
    while raw := file.readline(MAX_LINE + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(_UTF8_BOM)
        if len(raw) > MAX_LINE and not raw.endswith(b"\n"):
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(MAX_LINE)
            yield number, None
        else:
            yield number, raw.rstrip(b"\r\n")


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRowError(
            "invalid_utf8", f"byte {error.start + 1} of the line is not valid UTF-8"
        ) from error


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise BadRowError(
            "invalid_json", f"not JSON: {error.msg} at column {error.colno}"
        ) from error
    except RecursionError as error:
        raise BadRowError("invalid_json", "not usable JSON: nested too deeply") from error
    except ValueError as error:  # a constant that JSON lacks, a number of thousands of digits
        raise BadRowError("invalid_json", f"not JSON: {str(error)[:100]}") from error
    if not isinstance(value, dict):
        raise BadRowError("wrong_type", f"a row must be an object, not {kind(value)}")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
