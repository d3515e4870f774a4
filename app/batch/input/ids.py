"""Rows whose id an earlier row has, found among millions of rows in little memory."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import partial

_empty = partial(array, "q")


@dataclass(frozen=True, slots=True)
class Repeats:
    """Rows that repeat an id, in order."""

    rows: array[int] = field(default_factory=_empty)  # their indexes,
    lines: array[int] = field(default_factory=_empty)  # where they are,
    first_lines: array[int] = field(default_factory=_empty)  # and where the id was first seen

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
    """Collects the ids of rows in the order of the input: 16 bytes a row, and a list of the rows
    while ``repeats`` sorts them."""

    def __init__(self) -> None:
        self._digests = array("Q")
        self._lines = array("q")

    def add(self, identity: str | int, line: int) -> None:
        """Note the next row. The number 1 and the text "1" are different ids."""
        text = f"{type(identity).__name__}:{identity}".encode("utf-8", errors="surrogatepass")
        self._digests.frombytes(hashlib.blake2b(text, digest_size=8).digest())
        self._lines.append(line)

    def repeats(self) -> Repeats:
        """The rows that repeat an id."""
        digests, lines = self._digests, self._lines
        found = []
        # The sort is stable: of equal ids the first row comes first.
        order = sorted(range(len(digests)), key=digests.__getitem__)
        for _, same in itertools.groupby(order, digests.__getitem__):
            first, *others = same
            found += [(row, lines[row], lines[first]) for row in others]
        columns = zip(*sorted(found), strict=True) if found else ()
        return Repeats(*(array("q", column) for column in columns))
