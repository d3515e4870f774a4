"""The rows that the journal has no answer for, in the order in which they are to be computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.batch.input.source import Source
from app.batch.input.tasks import RowProblem
from app.batch.journal.journal import Entries
from app.batch.journal.matching import Matcher
from app.batch.schedule.ordering import rearranged
from app.batch.schedule.work import Work
from app.batch.settings import row_key
from runtimes.request import Priority

_DONE = 255


def missing(
    source: Source, entries: Entries, digest: bytes, priorities: Iterable[Priority]
) -> Iterator[Work]:
    """Higher ``priorities`` first, wherever they are in the input: it is read once for each, and
    once more where there are several. ``entries`` may grow meanwhile."""
    levels = sorted(priorities)
    if len(levels) <= 1:
        yield from rearranged(_lacking(source, Matcher(entries), digest))
        return
    # What is missing is decided once: the answers of this run must not be taken for other rows.
    marks = bytearray()
    matcher = Matcher(entries)
    for row in source.rows():
        mark = _DONE
        if not isinstance(row.task, RowProblem) and matcher.take(row_key(digest, row.task)) is None:
            mark = int(row.task.priority)
        marks.append(mark)
    del matcher
    for level in levels:
        yield from rearranged(_marked(source, marks, digest, level))


def _lacking(source: Source, matcher: Matcher, digest: bytes) -> Iterator[Work]:
    for row in source.rows():
        if isinstance(row.task, RowProblem):
            continue
        key = row_key(digest, row.task)
        if matcher.take(key) is None:
            yield Work(row, row.task, key)


def _marked(source: Source, marks: bytearray, digest: bytes, level: Priority) -> Iterator[Work]:
    for mark, row in zip(marks, source.rows(), strict=False):
        if mark == level and not isinstance(row.task, RowProblem):
            yield Work(row, row.task, row_key(digest, row.task))
