"""Which journal record answers which row.

Rows with the same content have the same key, so records are handed out one at a time: the second of
two equal rows gets the second record, and is computed if there is none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from app.batch.journal import Entries, short_key


class Matcher:
    """Hands out the records of ``entries``, to rows in the order of the input."""

    def __init__(self, entries: Entries) -> None:
        """Index ``entries`` as they are now: 33 bytes a record."""
        answered = np.array(entries.answered, dtype=bool)
        self._good = _Sorted(entries, np.flatnonzero(answered))
        self._bad = _Sorted(entries, np.flatnonzero(~answered))
        # At the position of each key's first record: how many of the key's records are taken.
        self._taken = np.zeros(len(self._good.keys), dtype=np.int64)

    def take(self, key: bytes) -> int | None:
        """The offset of an answer for ``key`` that no earlier row took."""
        start, end = self._good.range(key)
        if start == end or self._taken[start] == end - start:
            return None
        at = start + int(self._taken[start])
        self._taken[start] += 1
        return int(self._good.offsets[at])

    def failure(self, key: bytes) -> int | None:
        """The offset of the latest failure recorded for ``key``."""
        start, end = self._bad.range(key)
        return int(self._bad.offsets[start:end].max()) if end > start else None


class _Sorted:
    """Records in the order of their keys; those of one key in the order of rows, then of time."""

    def __init__(self, entries: Entries, chosen: npt.NDArray[np.int64]) -> None:
        keys = np.array(entries.keys, dtype=np.uint64)[chosen]
        indexes = np.array(entries.indexes, dtype=np.int64)[chosen]
        offsets = np.array(entries.offsets, dtype=np.int64)[chosen]
        order = np.lexsort((offsets, indexes, keys))
        self.keys = keys[order]
        self.offsets = offsets[order]

    def range(self, key: bytes) -> tuple[int, int]:
        wanted = np.uint64(short_key(key))
        start = int(np.searchsorted(self.keys, wanted, "left"))
        return start, int(np.searchsorted(self.keys, wanted, "right"))
