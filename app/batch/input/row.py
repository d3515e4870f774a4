"""What an input format is: one record, which stands in the file of the format. And a row of the
input: as it was read, and with what it asks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.batch.settings import NO_KEY
from app.openai.request import Endpoint
from app.openai.task import Task
from app.openai.validation import Problem


@dataclass(frozen=True, slots=True)
class Raw:
    """What a reader found."""

    line: int  # from 1: lines of a text file, rows of a Parquet file, files of a folder
    fields: Mapping[str, Any] = field(default_factory=dict)  # what was read, as JSON has it
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """A format. ``read`` takes a path and what messages call it, and gives every row in order. What
    is wrong with one row is that row's problem; it raises RequestError when the input as a whole
    cannot be read."""

    name: str
    read: Callable[[Path, str], Iterator[Raw]]
    hint: str  # what to do about an input without rows
    suffixes: tuple[str, ...] = ()  # of names of such files
    magic: bytes | None = None  # how each such file begins, whatever its name is
    first: bytes | None = None  # the first character, where nothing else says what a file is
    packed: bool = True  # whether it may be packed with gzip or zstd
    place: str = "line {line}"  # what messages call a row's place; {id} is the row's id as JSON
    # Of a folder: path, size and time of each file, which tell whether it changed.
    listing: Callable[[Path, str], Iterator[tuple[str, int, int]]] | None = None


NOTHING = Task()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a job."""

    index: int  # of the input's rows from 0
    line: int  # as in ``Raw``
    id: str | int
    task: Task = NOTHING  # asks nothing where there is a problem
    problem: Problem | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the input's row, ready for JSON
    endpoint: Endpoint | None = None  # that it is a request to; None for a plain row
    where: str = ""  # what messages call its place
    key: bytes = NO_KEY  # of its answer
