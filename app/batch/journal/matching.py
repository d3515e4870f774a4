"""Which journal record answers which row.

Rows with the same content have the same key, so records are handed out one at a time: the second of
two equal rows gets the second record, and is computed if there is none.
"""

from array import array
from bisect import bisect_left, bisect_right

from app.batch.journal.journal import Entries, short_key


class Matcher:
    """Hands out the records of ``entries``, to rows in the order of the input."""

    def __init__(self, entries: Entries) -> None:
        """Index ``entries`` as they are now: 24 bytes a record."""
        self._good = _Sorted(entries, answered=True)
        self._bad = _Sorted(entries, answered=False)
        self._keep_failures = entries.keep_failures
        # At the position of each key's first record: how many of the key's records are taken.
        self._taken = array("i", bytes(4 * len(self._good.keys)))

    def take(self, key: bytes) -> int | None:
        """The offset of an answer for ``key`` that no earlier row took; where failures stand, that
        of a failure if there is no answer. None: the row is to be computed."""
        start, end = self._good.range(key)
        if start == end or self._taken[start] == end - start:
            return self.failure(key) if self._keep_failures else None
        at = start + self._taken[start]
        self._taken[start] += 1
        return self._good.offsets[at]

    def failure(self, key: bytes) -> int | None:
        """The offset of the latest failure recorded for ``key``."""
        start, end = self._bad.range(key)
        return max(self._bad.offsets[start:end]) if end > start else None


class _Sorted:
    """Records in the order of their keys; those of one key in the order of rows, then of time."""

    def __init__(self, entries: Entries, *, answered: bool) -> None:
        chosen = array("q", (i for i, good in enumerate(entries.answered) if good == answered))
        # Python's sort is stable: by the last criterion first.
        ordered = sorted(chosen, key=entries.offsets.__getitem__)
        for column in (entries.indexes, entries.keys):
            ordered.sort(key=column.__getitem__)
        self.keys = array("Q", map(entries.keys.__getitem__, ordered))
        self.offsets = array("q", map(entries.offsets.__getitem__, ordered))

    def range(self, key: bytes) -> tuple[int, int]:
        wanted = short_key(key)
        start = bisect_left(self.keys, wanted)
        return start, bisect_right(self.keys, wanted, lo=start)
