"""The first rows of an input as a job would read them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice

from app.batch.input.source import Row, Source, open_source
from app.batch.input.tasks import RowProblem, Task
from app.batch.watch.command import Asked
from runtimes.errors import RequestError
from runtimes.request import SamplingParams

_MOST_TEXT = 20_000  # characters of a prompt


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """``prompt`` is what is asked, with the roles of earlier messages; ``problem`` what is wrong
    with the row, which then asks nothing."""

    index: int
    where: str
    id: str | int
    prompt: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Preview:
    """``format`` is what the input was taken for; ``more`` says whether there are more rows."""

    format: str
    rows: tuple[PreviewRow, ...]
    more: bool


def preview(asked: Asked, rows: int = 20) -> Preview:
    """Read the beginning of the input, and no more. Raises RequestError."""
    with open_asked(asked) as source:
        found = list(islice(source.all_rows(), rows + 1))
        return Preview(source.format, tuple(map(preview_row, found[:rows])), len(found) > rows)


def open_asked(
    asked: Asked, sampling: SamplingParams | None = None
) -> AbstractContextManager[Source]:
    """The input of a job; ``sampling`` is the job's, on which that of requests is based.

    Raises RequestError when it is standard input, or cannot be opened.
    """
    if asked.input is None:
        raise RequestError("this job reads standard input, which is not there any more")
    rows = asked.spec.rows
    return open_source(
        str(asked.input),
        format=None if rows.input_format == "auto" else rows.input_format,
        prompting=rows.prompting(sampling or SamplingParams()),
        limit=rows.limit,
    )


def preview_row(row: Row) -> PreviewRow:
    """A row for people."""
    if isinstance(row.task, RowProblem):
        return PreviewRow(row.index, row.where, row.id, "", row.task.message)
    return PreviewRow(row.index, row.where, row.id, prompt_text(row.task))


def prompt_text(task: Task) -> str:
    """What is asked, cut where it gets too long to be looked at."""
    parts = [f"[{message.role}] {message.content}" for message in task.history]
    many = len(task.turns) > 1 or bool(parts)
    parts += [f"[user] {turn}" if many else turn for turn in task.turns]
    text = "\n".join(parts)
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " ..."
