"""Decoding rows moved next to each other.

A runner whose slots have caches of their own decodes neighbouring slots in one pass. An unused slot
between them costs as much as a row that is run along, or another pass over the weights. So before a
step the row in the highest slot changes places with the lowest unused one, as often as that pays.
"""

from __future__ import annotations

import logging
import time

from runtimes.engine.prefix import PrefixCache
from runtimes.engine.scheduler import Scheduler, Step
from runtimes.errors import IngotError

logger = logging.getLogger(__name__)

# A gap is taken to stay for this many steps: some would be closed at once by a row that arrives.
_STEPS = 4
_MEMORY = 0.8  # of the last estimate, by measurement
_MOST_BYTES = 2**28  # of keys and values that are held twice while they move
_FIRST_BYTES_S = 1e9  # until a move has been timed; low, so that the first ones are small


class Gaps:
    """Closes gaps where that is worth its time, going by what moves and steps have taken."""

    def __init__(self, scheduler: Scheduler, prefix: PrefixCache, bytes_per_token: int) -> None:
        self._scheduler, self._prefix = scheduler, prefix
        self._most_tokens = _MOST_BYTES // max(bytes_per_token, 1)
        self._move_s = bytes_per_token / _FIRST_BYTES_S  # of a token
        self._row_s = 0.0  # of a row in a decode step
        self.moves = 0

    def stepped(self, step: Step, seconds: float) -> None:
        """Learn from a step."""
        if step.decoded and not step.prefill:
            self._row_s = _averaged(self._row_s, seconds / len(step.rows))

    def close(self) -> bool:
        """Move rows; True if any was, and steps must be planned anew.

        Rows whose keys and values could not be moved go back to the queue to be computed again.
        """
        before = self.moves
        while (gap := self._scheduler.gap()) is not None:
            source, target = gap
            row = self._scheduler.row_in(source)
            if row is None or row.dropped:  # nothing could bring a shifted row back
                break
            tokens = self._held(source) + self._held(target)
            left = row.request.params.max_tokens - len(row.output)
            worth = tokens * self._move_s <= min(left, _STEPS) * self._row_s
            if not worth or tokens > self._most_tokens:
                break
            self.moves += 1
            begin = time.perf_counter()
            try:
                self._prefix.swap(source, target)
            except (IngotError, MemoryError) as error:
                logger.warning("a row could not be moved: %s", error or "no memory")
                self._recompute(source)
                self._recompute(target)
                break
            self._scheduler.swap(source, target)
            self._move_s = _averaged(self._move_s, (time.perf_counter() - begin) / max(tokens, 1))
        return self.moves > before

    def _held(self, slot: int) -> int:
        """Tokens whose keys and values are in the slot."""
        row = self._scheduler.row_in(slot)
        return self._prefix.left_in(slot) if row is None or row.fresh else row.position

    def _recompute(self, slot: int) -> None:
        self._prefix.empty(slot)
        row = self._scheduler.row_in(slot)
        if row is not None and not row.fresh:
            self._scheduler.requeue(row)


def _averaged(old: float, new: float) -> float:
    return _MEMORY * old + (1 - _MEMORY) * new if old else new
