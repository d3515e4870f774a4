"""Rows whose id an earlier row has, found among millions of rows in little memory."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

_DIGEST_BYTES = 16  # so that no two different ids of any real file have the same
# Up to here a set tells that nothing repeats sooner than NumPy is imported.
_FEW = 100_000


def _empty() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True)
class Repeats:
    """``rows`` are the indexes of repeating rows in order, ``lines`` where they are, and
    ``first_lines`` where each one's id was first seen."""

    rows: array[int] = field(default_factory=_empty)
    lines: array[int] = field(default_factory=_empty)
    first_lines: array[int] = field(default_factory=_empty)

    def first_line(self, index: int) -> int | None:
        """Where the id of the row at ``index`` was seen before; None if it was not."""
        at = bisect_left(self.rows, index)
        if at < len(self.rows) and self.rows[at] == index:
            return self.first_lines[at]
        return None

    def without(self, refused: set[int]) -> Repeats:
        """Those that are not among the row indexes ``refused``."""
        kept = [at for at, row in enumerate(self.rows) if row not in refused]
        columns = (self.rows, self.lines, self.first_lines)
        return Repeats(*(array("q", map(column.__getitem__, kept)) for column in columns))

    def __len__(self) -> int:
        return len(self.rows)


class IdIndex:
    """Collects the ids of rows in the order of the input: 24 bytes a row, and as much again while
    ``repeats`` sorts them."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._lines = array("q")

    def add(self, identity: str | int, line: int) -> None:
        """Note the next row. The number 1 and the text "1" are different ids."""
        text = f"{type(identity).__name__}:{identity}".encode("utf-8", errors="surrogatepass")
        self._digests += hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
        self._lines.append(line)

    def repeats(self) -> Repeats:
        """The rows that repeat an id."""
        if len(self._lines) <= _FEW and len(set(self._each())) == len(self._lines):
            return Repeats()
        import numpy as np

        digests = np.frombuffer(self._digests, np.uint64).reshape(-1, 2)
        order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal ids stay in order
        ordered = digests[order]
        repeats = np.concatenate(([False], (ordered[1:] == ordered[:-1]).all(axis=1)))
        del ordered
        # The first of each group of equal ids, at every position of the group.
        starts = np.maximum.accumulate(np.where(repeats, 0, np.arange(len(order))))
        rows, firsts = order[repeats], order[starts[repeats]]
        by_row = np.argsort(rows)
        lines = np.frombuffer(self._lines, np.int64)
        columns = (rows.astype(np.int64), lines[rows], lines[firsts])
        return Repeats(*(array("q", column[by_row].tobytes()) for column in columns))

    def _each(self) -> Iterator[bytes]:
        for start in range(0, len(self._digests), _DIGEST_BYTES):
            yield bytes(self._digests[start : start + _DIGEST_BYTES])
