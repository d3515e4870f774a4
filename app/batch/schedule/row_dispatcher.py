"""Rows for several engines: those that begin alike go to one of them, where possible."""

from collections import deque
from collections.abc import Iterator

from app.batch.input.row import Row
from app.batch.schedule.pending_rows import shared_beginning


class RowDispatcher:
    """Hands out the rows of a stream in which those that begin alike follow each other.

    Each engine has a small store of rows with the same beginning, so that its prefix cache computes
    it once; one that has nothing left takes from the others. Memory: the stores.
    """

    def __init__(self, rows: Iterator[Row], users: int) -> None:
        """``users`` engines, called by numbers from 0."""
        self._rows = rows
        self._next: Row | None = None
        self._ended = False
        self._stores: list[deque[Row]] = [deque() for _ in range(users)]

    def __len__(self) -> int:
        """Rows that were taken from the stream and not handed out."""
        return sum(map(len, self._stores)) + (self._next is not None)

    @property
    def exhausted(self) -> bool:
        """Whether every row has been handed out, as far as ``take`` has found."""
        return self._ended and not len(self)

    def take(self, user: int, most: int) -> Row | None:
        """The next row for an engine that likes to have ``most`` rows of a kind; None at the end.

        With a single engine nothing is read ahead.
        """
        if len(self._stores) == 1:
            return self._read()
        store = self._stores[user]
        if not store:
            self._fill(store, most)
        if not store:
            store = max(self._stores, key=len)
            return store.pop() if store else None
        return store.popleft()

    def _fill(self, store: deque[Row], most: int) -> None:
        item, self._next = self._next or self._read(), None
        while item is not None:
            store.append(item)
            if len(store) >= most:
                return
            item = self._read()
            if item is not None and shared_beginning(item) != shared_beginning(store[0]):
                self._next = item
                return

    def _read(self) -> Row | None:
        item = next(self._rows, None) if not self._ended else None
        self._ended = item is None
        return item
