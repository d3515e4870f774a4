"""Rows that the journal has no answer for, in the order in which they are to be computed: the
most urgent first, those of one adapter together, of these what begins alike together and on one
engine, long before short.

The output does not depend on it. Rows are rearranged within windows of bounded size, so that the
input may have any number of them.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from app.batch.input.scan import InputScan
from app.batch.input.source import Row, Source

WINDOW_ROWS = 1024
WINDOW_CHARACTERS = 1 << 24
# Rows with so many first characters in common are kept together: the chat template's own beginning
# is shared anyhow.
_SHARED = 64
_COMPARED = 4096


def pending_rows(source: Source, found: InputScan) -> Iterator[Row]:
    """Rows without an answer, the higher priorities first, wherever they are in the input. What is
    missing was decided when it was scanned: an answer of this run is never taken for another
    row."""
    for priority in sorted(found.places):
        yield from rearranged(source.rows_at(found.places[priority]))


def rearranged(
    pending: Iterable[Row], rows: int = WINDOW_ROWS, characters: int = WINDOW_CHARACTERS
) -> Iterator[Row]:
    """Rearrange rows window by window, in the order of ``arranged``."""
    window: list[Row] = []
    held = 0
    for row in pending:
        window.append(row)
        held += row.task.characters
        if len(window) >= rows or held >= characters:
            yield from arranged(window)
            window, held = [], 0
    yield from arranged(window)


def arranged(window: Sequence[Row]) -> list[Row]:
    """Higher priorities first, then by adapter, since rows of several in one step cost more. Rows
    that begin alike follow each other, so that the beginning is computed once; the longest of these
    groups and rows come first, so that no long row is left to run alone at the end."""
    longest = Counter[Any]()
    for row in window:
        for key in (_kind(row), shared_beginning(row)):
            longest[key] = max(longest[key], row.task.characters)

    def place(row: Row) -> tuple[Any, ...]:
        kind, group = _kind(row), shared_beginning(row)
        return row.task.priority, -longest[kind], kind, -longest[group], _beginning(row)

    return sorted(window, key=place)


def _kind(row: Row) -> tuple[int, str]:
    adapter = row.task.adapter
    return row.task.priority, "" if adapter is None else adapter.name


def shared_beginning(row: Row) -> tuple[tuple[int, str], str]:
    """Equal for rows that are kept together."""
    return _kind(row), _beginning(row)[:_SHARED]


def _beginning(row: Row) -> str:
    parts = (str(message["content"])[:_COMPARED] for message in row.task.opening)
    return "\n".join(parts)[:_COMPARED]


class RowDispatcher:
    """Hands out the rows of a stream in which those that begin alike follow each other.

    Each of ``users`` engines, called by numbers from 0, has a small store of rows with the same
    beginning, so that its prefix cache computes it once; one that has nothing left takes from the
    others. With a single engine nothing is read ahead.
    """

    def __init__(self, rows: Iterator[Row], users: int) -> None:
        self._groups = groupby(rows, key=shared_beginning)
        self._group: Iterator[Row] = iter(())
        self._ended = False
        self._stores: list[deque[Row]] = [deque() for _ in range(users)]

    @property
    def exhausted(self) -> bool:
        """Whether every row has been handed out, as far as ``take`` has found."""
        return self._ended and not any(self._stores)

    def take(self, user: int, most: int) -> Row | None:
        """The next row for an engine that likes to have ``most`` rows of a kind; None at the
        end."""
        store = self._stores[user]
        while not store and not self._ended:
            store.extend(islice(self._group, most if len(self._stores) > 1 else 1))
            if not store:
                following = next(self._groups, None)
                self._ended = following is None
                self._group = iter(()) if following is None else following[1]
        if store:
            return store.popleft()
        longest = max(self._stores, key=len)
        return longest.pop() if longest else None
