"""A row of the input: as it was read, and with what it asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.batch.settings import NO_KEY
from app.openai.request import Endpoint
from app.openai.task import Problem, Task


@dataclass(frozen=True, slots=True)
class Raw:
    """What a reader found."""

    line: int  # from 1: lines of a text file, rows of a Parquet file, files of a folder
    fields: Mapping[str, Any] = field(default_factory=dict)  # all that could be read
    problem: Problem | None = None


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
