"""Records of rows that finish in any order, written in the order of the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.batch.records import record_of
from app.batch.source import Row
from app.batch.wire import dump_line


class OrderedOutput:
    """Holds a record back until all rows before it are written.

    What it holds is bounded: while one row runs, at most ``slots`` others finish in each step.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._next = 0
        self._held: dict[int, bytes] = {}

    def put(self, row: Row, answer: dict[str, Any]) -> None:
        """Take the answer to a row, and write whatever is due."""
        self._held[row.index] = dump_line(record_of(row, answer))
        while (line := self._held.pop(self._next, None)) is not None:
            self._next += 1
            self._write(line)
