"""The input as a stream of rows that can be read again, whole or by the rows' places: every row has
a task or a problem."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import sys
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice, starmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.batch.input.lines import Places, Raw, Reader
from app.batch.input.prompting import Prompting, row_id
from app.batch.input.readers import detect
from app.batch.settings import NO_KEY, row_key
from app.openai.request import Endpoint
from app.openai.task import Task
from app.openai.validation import BODY, InputError, Problem
from runtimes.errors import ParameterError, RequestError, WorkerError
from runtimes.untrusted import Fields, excess

log = logging.getLogger(__name__)

_MOST_SHARDS = 100_000


NOTHING = Task()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a job."""

    index: int  # of the input's rows from 0
    line: int  # as in ``Raw``
    id: str | int
    task: Task = NOTHING  # asks nothing where there is a problem
    problem: Problem | None = None
    fields: Fields = field(default_factory=dict)  # of the input's row, ready for JSON
    endpoint: Endpoint | None = None  # that it is a request to; None for a plain row
    where: str = ""  # what messages call its place
    key: bytes = NO_KEY  # of its answer
    offset: int = 0  # as in ``Raw``


# Rows whose id an earlier row has, found among millions of rows in little memory.


Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Repeats:
    """Rows that repeat an id, in order."""

    rows: Numbers  # their indexes,
    lines: Numbers  # where they are,
    first_lines: Numbers  # and where the id was first seen

    def first_line(self, index: int) -> int | None:
        """Return the line where the id of the row at ``index`` was seen first, None if nowhere."""
        at = bisect_left(self.rows, index)
        found = at < len(self.rows) and self.rows[at] == index
        return int(self.first_lines[at]) if found else None

    def without(self, refused: Sequence[int]) -> Repeats:
        """Drop the rows whose indexes are ``refused``."""
        kept = ~np.isin(self.rows, refused)
        return Repeats(self.rows[kept], self.lines[kept], self.first_lines[kept])

    def __len__(self) -> int:
        return len(self.rows)


NO_REPEATS = Repeats(*(np.zeros(0, np.int64) for _ in range(3)))


class IdIndex:
    """Collects the ids of rows in the order of the input: 16 bytes a row, and a few times as many
    while ``repeats`` sorts them."""

    def __init__(self) -> None:
        self._digests = array("Q")
        self._lines = array("q")

    def add(self, identity: str | int, line: int) -> None:
        """Note the next row. The number 1 and the text "1" are different ids."""
        text = f"{type(identity).__name__}:{identity}".encode("utf-8", errors="surrogatepass")
        self._digests.frombytes(hashlib.blake2b(text, digest_size=8).digest())
        self._lines.append(line)

    def repeats(self) -> Repeats:
        """The rows that repeat an id."""
        lines = np.array(self._lines)
        _, firsts, which = np.unique(
            np.array(self._digests), return_index=True, return_inverse=True
        )
        first = firsts[which]  # for each row, the first one with its id
        rows = np.flatnonzero(first != np.arange(len(lines)))
        return Repeats(rows, lines[rows], lines[first[rows]])


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the rows, so that several machines can share a job: ``number`` of ``count``,
    counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From I/N on the command line. Raises RequestError."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match and 1 <= int(match[1]) <= int(match[2]) <= _MOST_SHARDS:
            return cls(int(match[1]), int(match[2]))
        raise RequestError(
            f"--shard must be I/N with I from 1 to N, such as 2/4, not {text[:40]!r}"
        )

    def has(self, identity: str | int) -> bool:
        """Whether the row of this id belongs to the part. By a hash of the id, so that a row stays
        in its part when others are added or taken away; rows without an id go by their index."""
        text = str(identity).encode("utf-8", errors="surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(slots=True)
class Source:
    """Rows that can be read any number of times."""

    path: Path
    name: str  # what the user called the input
    reader: Reader
    prompting: Prompting = field(default_factory=Prompting)
    # Known after a first reading: from then on a request that has the ``custom_id`` of an earlier
    # row is a problem, since nobody could tell their answers apart.
    repeats: Repeats = NO_REPEATS
    shard: Shard | None = None
    digest: bytes = b""  # of the job's settings; it is part of the rows' keys
    seen: str = ""  # its ``stamp`` at the last scan

    def rows(self) -> Iterator[Row]:
        """The rows of this job in order: those of ``shard``, or all. Raises RequestError when the
        input as a whole cannot be read."""
        return filter(self.takes, self.all_rows())

    def takes(self, row: Row) -> bool:
        """Whether a row is one of this job's."""
        return self.shard is None or self.shard.has(row.id)

    def all_rows(self) -> Iterator[Row]:
        """Every row of the input in order, up to ``--limit``. Raises as ``rows``."""
        raws = islice(self.reader.read(self.path, self.name, None), self.prompting.rows.limit)
        return starmap(self._row, enumerate(raws))

    def rows_at(self, places: Places) -> Iterator[Row]:
        """The valid rows at ``places``; no other row is parsed. Raises as ``rows``."""
        at = -1
        for raw in self.reader.read(self.path, self.name, places):
            # A row is missing only where the input changed, which is refused at the end.
            at = places.lines.index(raw.line, at + 1)
            row = self._row(places.indexes[at], raw)
            if row.problem is None:
                yield row

    def stamp(self) -> str:
        """The input's present size and time; of a folder, a hash of those of its files."""
        if self.reader.listing is None:
            stat = self.path.stat()
            return f"{stat.st_size} {stat.st_mtime_ns}"
        digest = hashlib.sha256()
        for file in self.reader.listing(self.path, self.name):
            digest.update(repr(file).encode())
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        """Raises RequestError when the input is no longer what was scanned."""
        if self.stamp() != self.seen:
            raise RequestError(
                f"{self.name} changed while the job ran; run the same command again "
                "(rows that stayed the same are not computed again)"
            )

    def _row(self, index: int, raw: Raw) -> Row:
        fields = raw.fields
        identity, key = row_id(fields, index), NO_KEY
        task, problem, endpoint = NOTHING, raw.problem, None
        if wrong := excess(fields, BODY):
            # What is so deep can hardly be written again: only its plain values are kept.
            fields = {
                name: one for name, one in fields.items() if not isinstance(one, (list, dict))
            }
            problem = problem or Problem("invalid_value", f"the row {wrong}")
        if problem is None:
            endpoint = self.prompting.endpoint(fields)
            try:
                task = self.prompting.task(fields, endpoint)
                key = row_key(self.digest, task)
            except InputError as error:
                problem = error.problem
            except WorkerError:  # none of the row's doing
                raise
            except Exception as error:  # whatever a row can do, it must not end the job
                log.debug("row %d cannot be read", index, exc_info=True)
                said = f"the row cannot be read: {type(error).__name__}: {error}"[:200]
                task, problem = NOTHING, Problem("invalid_row", said)
        if endpoint and (first := self.repeats.first_line(index)) is not None:
            message = f"line {first} has the same custom_id {json.dumps(identity)[:60]}"
            task, problem, key = NOTHING, Problem("duplicate_id", message), NO_KEY
        where = self.reader.place.format(line=raw.line, id=json.dumps(identity, ensure_ascii=False))
        return Row(
            index, raw.line, identity, task, problem, fields, endpoint, where, key, raw.offset
        )


@contextmanager
def open_source(
    name: str,
    prompting: Prompting | None = None,
    *,
    shard: Shard | None = None,
    digest: bytes = b"",
) -> Iterator[Source]:
    """The source that the user calls ``name``: a file, a folder, or ``-`` for standard input; its
    format and limit are those of ``prompting.rows``.

    Raises RequestError when there is no such file or it is not of a kind that can be read.
    """
    prompting = prompting or Prompting()
    with ExitStack() as stack:
        path = Path(name)
        if name == "-":
            if sys.stdin is None:
                raise RequestError("the input is -, and standard input is closed")
            # A job reads its input more than once.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ingot-stdin-"))
            path, name = Path(folder) / "input", "standard input"
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        reader = detect(path, name, prompting.rows.input_format)
        if reader.name == "text" and prompting.rows.field is not None:
            raise ParameterError(
                f"--field is for rows with fields, and {name} is read as plain text"
                " (see --input-format)",
                "field",
            )
        yield Source(path, name, reader, prompting, shard=shard, digest=digest)
