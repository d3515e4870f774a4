"""Which waiting rows get a slot, and when: one queue, four ways to form batches from it.

Rows wait in the order of ``arrival + priority * aging``: a CRITICAL request overtakes a LOW one
that came up to three agings earlier, and none after that, so that no row starves.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from runtimes.engine.row import Row
from runtimes.request import Priority
from runtimes.settings import SchedulerSettings


def aged_key(arrival: float, priority: Priority, aging_s: float) -> float:
    """What waiting rows are ordered by, in seconds of the caller's clock."""
    return arrival + priority * aging_s


class WaitingQueue:
    """Waiting rows in their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int, int], Row]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def head(self) -> Row | None:
        """The row that comes next."""
        return self._heap[0][1] if self._heap else None

    def push(self, row: Row) -> None:
        """Add a row."""
        heapq.heappush(self._heap, (row.rank(), row))

    def pop(self) -> Row:
        """Take the head out."""
        return heapq.heappop(self._heap)[1]

    def remove(self, row: Row) -> None:
        """Take any row out; nothing happens if it is not there."""
        kept = [entry for entry in self._heap if entry[1] is not row]
        if len(kept) != len(self._heap):
            self._heap = kept
            heapq.heapify(self._heap)

    def rows(self) -> list[Row]:
        """All rows in order."""
        return [entry[1] for entry in sorted(self._heap)]


def ready_rows(
    waiting: WaitingQueue,
    running: Sequence[Row],
    free: int,
    oldest_wait: float,
    settings: SchedulerSettings,
) -> list[Row]:
    """The waiting rows that the strategy lets in now, in order, at most ``free``.

    ``oldest_wait`` is how many seconds the longest waiting row has waited. ``continuous`` (Orca,
    OSDI 2022) fills every slot as soon as it is free. The others exist for comparison: ``static``
    forms a batch when the last one has ended whole, ``bucketed`` does so with prompts of about one
    length (a power of two), ``sequential`` runs one request at a time.
    """
    if not free or not len(waiting):
        return []
    if settings.strategy == "continuous":
        # One free slot is the usual case; a long queue need not be sorted for it.
        return [waiting.head] if free == 1 and waiting.head else waiting.rows()[:free]
    # Further samples of a running request belong to its batch.
    company = {row.request.id for row in running}
    siblings = [row for row in waiting.rows() if row.request.id in company]
    if running:
        return siblings[:free]
    if settings.strategy == "sequential":
        return waiting.rows()[:1]
    full = len(waiting) >= free
    if not full and oldest_wait < settings.batch_timeout_s:
        return []
    rows = waiting.rows()
    if settings.strategy == "bucketed":
        bucket = len(rows[0].request.prompt).bit_length()
        rows = [row for row in rows if len(row.request.prompt).bit_length() == bucket]
    return rows[:free]
