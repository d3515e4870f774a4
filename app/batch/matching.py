"""Which journal record answers which row.

Rows with the same content have the same key, so records are handed out one at a time: the second of
two equal rows gets the second record, and is computed if there is none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from app.batch.journal import Entries, short_key


class Matcher:
    """Hands out the records of ``entries``, to rows in the order of the input."""

    def __init__(self, entries: Entries) -> None:
        """Index ``entries`` as they are now: 24 bytes a record."""
        answered = entries.answered
        self._good = _Sorted(entries, [i for i, good in enumerate(answered) if good])
        self._bad = _Sorted(entries, [i for i, good in enumerate(answered) if not good])
        # At the position of each key's first record: how many of the key's records are taken.
        self._taken = array("q", bytes(8 * len(self._good.keys)))

    def take(self, key: bytes) -> int | None:
        """The offset of an answer for ``key`` that no earlier row took."""
        start, end = self._good.range(key)
        if start == end or self._taken[start] == end - start:
            return None
        at = start + self._taken[start]
        self._taken[start] += 1
        return self._good.offsets[at]

    def failure(self, key: bytes) -> int | None:
        """The offset of the latest failure recorded for ``key``."""
        start, end = self._bad.range(key)
        return max(self._bad.offsets[start:end]) if end > start else None


class _Sorted:
    """Records in the order of their keys; those of one key in the order of rows, then of time."""

    def __init__(self, entries: Entries, chosen: list[int]) -> None:
        # Python's sort is stable: by the last criterion first.
        for column in (entries.offsets, entries.indexes, entries.keys):
            chosen.sort(key=column.__getitem__)
        self.keys = array("Q", map(entries.keys.__getitem__, chosen))
        self.offsets = array("q", map(entries.offsets.__getitem__, chosen))

    def range(self, key: bytes) -> tuple[int, int]:
        wanted = short_key(key)
        start = bisect_left(self.keys, wanted)
        return start, bisect_right(self.keys, wanted, lo=start)
