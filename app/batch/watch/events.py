"""What the process of a job tells by its --json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.batch.watch.feed import JournalFeed
from app.batch.watch.speeds import Speed, SpeedHistory
from app.batch.watch.tail import Tail

# Of a log that was not followed for days, only the end is read: the journal has the rows.
_LAST = 4 << 20
_NOTES = 20


class EventFeed:
    """The latest events of a run; ``journal`` is told which rows are in work, or not valid."""

    def __init__(self, path: Path, journal: JournalFeed) -> None:
        self.begin: dict[str, Any] | None = None
        self.progress: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.notes: list[str] = []
        self.speeds = SpeedHistory()
        self._journal = journal
        self._run_before = journal.run
        self._tail = Tail(path, last=_LAST)

    @property
    def draining(self) -> bool:
        """Whether it starts nothing new."""
        return bool(self.progress and self.progress.get("draining"))

    def of_this_run(self, run: dict[str, Any]) -> bool:
        """Whether a note in the journal is on this run, and not on the one before."""
        return run is not self._run_before

    def read(self) -> None:
        """Take in all that is new."""
        while True:
            _, lines = self._tail.read()
            for _, line in lines:
                self._take(line)
            if not lines:
                return

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, KeyError, TypeError):
            return
        if kind == "begin":
            self.begin = event
            self._journal.invalid = event.get("invalid_rows", ())
            self._journal.rows.grow(event.get("input_rows", 0))
            self._journal.rows.set_invalid(self._journal.invalid)
        elif kind == "progress":
            self.progress = event
            self._journal.rows.set_running(event.get("working", ()))
            self.speeds.add(
                Speed(event["elapsed_s"], event["prefill_tps_now"], event["decode_tps_now"])
            )
        elif kind == "end":
            self.end = event
        elif kind == "note" and len(self.notes) < _NOTES:
            self.notes.append(str(event.get("text", "")))
