"""The rows that the journal has no answer for, in the order in which they are to be computed: the
most urgent first, what begins alike together, long before short.

The output does not depend on it. Rows are rearranged within windows of bounded size, so that the
input may have any number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from app.batch.input.source import Row, Source
from app.batch.input.tasks import RowProblem
from app.batch.journal.journal import Entries
from app.batch.journal.matching import Matcher
from app.batch.schedule.work import Work
from app.batch.settings import row_key
from runtimes.request import Priority

WINDOW_ROWS = 1024
WINDOW_CHARACTERS = 1 << 24
# Rows with so many first characters in common are kept together: the chat template's own beginning
# is shared anyhow.
_SHARED = 64
_COMPARED = 4096
_DONE = 255


def pending_rows(
    source: Source, entries: Entries, digest: bytes, priorities: Iterable[Priority]
) -> Iterator[Work]:
    """Higher ``priorities`` first, wherever they are in the input: it is read once for each, and
    once more where there are several. ``entries`` may grow meanwhile."""
    matcher, levels = Matcher(entries), sorted(priorities)
    if len(levels) <= 1:
        yield from rearranged(
            work for row in source.rows() if (work := _lacking(row, matcher, digest)) is not None
        )
        return
    # What is missing is decided once: the answers of this run must not be taken for other rows.
    marks = bytearray()
    for row in source.rows():
        work = _lacking(row, matcher, digest)
        marks.append(_DONE if work is None else int(work.task.priority))
    del matcher
    for level in levels:
        yield from rearranged(_marked(source, marks, digest, level))


def _lacking(row: Row, matcher: Matcher, digest: bytes) -> Work | None:
    if isinstance(row.task, RowProblem):
        return None
    key = row_key(digest, row.task)
    return Work(row, row.task, key) if matcher.take(key) is None else None


def _marked(source: Source, marks: bytearray, digest: bytes, level: Priority) -> Iterator[Work]:
    for mark, row in zip(marks, source.rows(), strict=False):
        if mark == level and not isinstance(row.task, RowProblem):
            yield Work(row, row.task, row_key(digest, row.task))


def rearranged(
    work: Iterable[Work], rows: int = WINDOW_ROWS, characters: int = WINDOW_CHARACTERS
) -> Iterator[Work]:
    """The same work, window by window in the order of ``arranged``."""
    window: list[Work] = []
    held = 0
    for item in work:
        window.append(item)
        held += item.task.characters
        if len(window) >= rows or held >= characters:
            yield from arranged(window)
            window, held = [], 0
    yield from arranged(window)


def arranged(window: Sequence[Work]) -> list[Work]:
    """Higher priorities first. Rows that begin alike follow each other, so that the beginning is
    computed once; the longest of these groups and rows come first, so that no long row is left to
    run alone at the end."""
    alphabetical = sorted(window, key=lambda item: (item.task.priority, _beginning(item)))
    groups = [list(group) for _, group in groupby(alphabetical, key=shared_beginning)]
    groups.sort(
        key=lambda group: (group[0].task.priority, -max(item.task.characters for item in group))
    )
    return [item for group in groups for item in group]


def shared_beginning(item: Work) -> tuple[int, str]:
    """Equal for rows that are kept together."""
    return item.task.priority, _beginning(item)[:_SHARED]


def _beginning(item: Work) -> str:
    parts = (*(message.content for message in item.task.history), item.task.turns[0])
    return "\n".join(parts)[:_COMPARED]
