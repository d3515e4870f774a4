"""What a record of the output is, and an output format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.input.row import Row
from app.openai.answer import RECORD_NAMES, Answer
from app.openai.validation import Problem

Record = Mapping[str, Any]
# Called as often as the records are needed; each call begins anew.
Records = Callable[[], Iterable[Record]]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format of OUT; it stands in the file that writes it."""

    name: str
    record: Callable[[Row, Answer, RecordForm], dict[str, Any]]
    write: Callable[[Path, Records], None]  # raises OSError when the file cannot grow
    # What was written, each record with the index of its row, in the order of these.
    read: Callable[[Path], Iterator[tuple[int, dict[str, Any]]]]
    suffixes: tuple[str, ...] = ()  # of OUT
    check: Callable[[], object] = dict  # raises RequestError when something is not installed
    # Where a record is a line, the index of the row that it is of; None for one that is not ours.
    index: Callable[[Record], int | None] | None = None


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How the rows of a job and their answers become records."""

    format: OutputFormat
    model: str  # what OpenAI's form calls it
    raw: bool = False  # prompts go in without a chat template
    fields: bool = True  # flat records have the fields of the input
    lasting: bool = False  # what another run of the job would not repeat is left out
    names: frozenset[str] = RECORD_NAMES  # that flat records keep for answers

    def record(self, row: Row, answer: Answer) -> dict[str, Any]:
        """The record, ready for JSON."""
        return self.format.record(row, answer.lasting() if self.lasting else answer, self)


def flat_record(row: Row, answer: Answer, form: RecordForm) -> dict[str, Any]:
    """The row's id and index, the fields of the input, the answer.

    A field whose name the record needs for something else is called ``input_NAME``. An error's
    message names the place in the input.
    """
    own = answer.to_json()
    own.pop("created", None)
    if answer.error is not None:
        own["error"] = {"code": answer.error.code, "message": located(row, answer.error)}
    record: dict[str, Any] = {"id": row.id, "index": row.index}
    if form.fields:
        taken = record.keys() | form.names | own.keys()
        for name, value in row.fields.items():
            if name in record and record[name] == value:
                continue  # the id that the record has already
            free = name
            while free in taken or free in record:
                free = f"input_{free}"
            record[free] = value
    record.update(own)
    return record


def located(row: Row, problem: Problem) -> str:
    """An error's message with the row's place in the input before it."""
    return f"{row.where or f'line {row.line}'}: {problem.message}"
