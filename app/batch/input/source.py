"""The input as a stream of rows that can be read again: every row asks something or says what is
wrong with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.batch.input.detect import detect, spool_stdin
from app.batch.input.folder_rows import listing
from app.batch.input.ids import Repeats
from app.batch.input.prompting import Prompting
from app.batch.input.raw import Format, Raw
from app.batch.input.readers import read_rows
from app.batch.input.shard import Shard
from app.batch.input.tasks import RowProblem, Task, row_id
from runtimes.errors import ParameterError

__all__ = ["Format", "Row", "Source", "Stamp", "open_source"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the input. ``index`` counts rows from 0, ``line`` lines of the file (rows of a
    Parquet file, files of a folder) from 1; ``where`` is what messages call that place.

    ``fields`` are the names the row has at its top level, for messages about missing fields.
    """

    index: int
    line: int
    id: str | int
    task: Task | RowProblem
    fields: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Tells whether the input changed between two readings; of a folder, its listing's hash."""

    size: int
    mtime_ns: int
    listing: str = ""


@dataclass(slots=True)
class Source:
    """Rows that can be read any number of times. ``name`` is what the user called the input.

    ``repeats`` are known after a first reading: from then on a request that has the ``custom_id``
    of an earlier row is a problem, since nobody could tell their answers apart.
    """

    path: Path
    name: str
    format: Format
    prompting: Prompting = field(default_factory=Prompting)
    limit: int | None = None
    repeats: Repeats = field(default_factory=Repeats)
    shard: Shard | None = None

    def rows(self) -> Iterator[Row]:
        """The rows of this job in order: those of ``shard``, or all. Raises RequestError when the
        input as a whole cannot be read."""
        return filter(self.takes, self.all_rows()) if self.shard else self.all_rows()

    def takes(self, row: Row) -> bool:
        """Whether a row is one of this job's."""
        return self.shard is None or self.shard.has(row.id)

    def all_rows(self) -> Iterator[Row]:
        """Every row of the input in order, at most ``limit``. Raises as ``rows``."""
        for index, raw in enumerate(read_rows(self.path, self.name, self.format)):
            if self.limit is not None and index >= self.limit:
                return
            yield self._row(index, raw)

    def stamp(self) -> Stamp:
        """The input's present size and time."""
        if self.format == "folder":
            digest, size = hashlib.sha256(), 0
            for path, count, mtime_ns in listing(self.path, self.name):
                size += max(0, count)
                digest.update(repr((path, count, mtime_ns)).encode())
            return Stamp(size, 0, digest.hexdigest())
        stat = self.path.stat()
        return Stamp(stat.st_size, stat.st_mtime_ns)

    def _row(self, index: int, raw: Raw) -> Row:
        identity = row_id(raw.fields, index)
        task: Task | RowProblem
        if raw.problem is not None:
            task = replace(raw.problem, source=raw.fields)
        else:
            task = self.prompting.task(raw.fields)
        if task.style != "flat" and (first := self.repeats.first_line(index)) is not None:
            message = f"line {first} has the same custom_id {json.dumps(identity)[:60]}"
            task = RowProblem("duplicate_id", message, task.style, task.source)
        where = self._place(raw.line, identity)
        return Row(index, raw.line, identity, task, tuple(raw.fields), where)

    def _place(self, line: int, identity: str | int) -> str:
        match self.format:
            case "folder":
                return f"file {json.dumps(identity, ensure_ascii=False)}"
            case "parquet":
                return f"row {line}"
            case _:
                return f"line {line}"


@contextmanager
def open_source(
    name: str,
    *,
    format: Format | None = None,
    prompting: Prompting | None = None,
    limit: int | None = None,
) -> Iterator[Source]:
    """The source that the user calls ``name``: a file, a folder, or ``-`` for standard input.

    Raises RequestError when there is no such file or it is not of a kind that can be read.
    """
    prompting = prompting or Prompting()
    if name != "-":
        yield _source(Path(name), name, format, prompting, limit)
        return
    path = spool_stdin()
    try:
        yield _source(path, "standard input", format, prompting, limit)
    finally:
        path.unlink(missing_ok=True)


def _source(
    path: Path, name: str, format: Format | None, prompting: Prompting, limit: int | None
) -> Source:
    found = detect(path, name, format)
    if found == "text" and prompting.field is not None:
        raise ParameterError(
            f"--field is for rows with fields, and {name} is read as plain text"
            " (see --input-format)",
            "field",
        )
    return Source(path, name, found, prompting, limit)
