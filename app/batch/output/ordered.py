"""Records of rows that finish in any order, written in the order of the input."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from app.batch.input.source import Row
from app.batch.output.formats import RecordForm
from app.batch.output.wire import dump_line


class OrderedOutput:
    """Holds a record back until all rows before it are written.

    What it holds is bounded: while one row runs, at most ``slots`` others finish in each step.
    """

    def __init__(self, form: RecordForm, write: Callable[[bytes], None]) -> None:
        self._form = form
        self._write = write
        self._order: deque[int] = deque()
        self._held: dict[int, bytes] = {}

    def expect(self, row: Row) -> None:
        """Say which row comes next in the output."""
        self._order.append(row.index)

    def put(self, row: Row, answer: Mapping[str, Any], key: bytes) -> None:
        """Take the answer to a row, and write whatever is due."""
        self._held[row.index] = dump_line(self._form.record(row, answer, key))
        while self._order and (line := self._held.pop(self._order[0], None)) is not None:
            self._order.popleft()
            self._write(line)
