"""Notes in the journal on the runs that wrote it, and what they tell.

A run begins with ``batch-run``: ``at`` (Unix seconds), ``host`` and ``pid`` of the process and
``born`` (when it was started), the ``command`` (the arguments after ``ingot``) and the ``folder``
that it was started in, ``rows`` of the input's part, ``input_rows`` of all of it, ``invalid`` and
``reused`` among them, ``shard`` (I/N or null), ``format`` of the output, ``input``.
While it runs, ``batch-left`` says how long it will take: ``at`` and the figures of ``left_json``.
It ends with ``batch-end`` unless it was killed: ``at`` and ``unfinished`` (rows without a result).
"""

import os
import socket
import sys
import time
from typing import Any

from app.batch.journal.journal import Journal
from app.batch.journal.lines import LEFT
from app.batch.report.progress import BaseProgress, Snapshot
from app.batch.report.time_left import Left, left_json
from runtimes.machine.processes import birth

_LEFT_S, _MOVED = 5.0, 0.1  # notes on the time left: how often at most, and after which change


def run_note(**job: int | str | None) -> dict[str, Any]:
    """The values of a ``batch-run`` note of this process; ``job`` has those from ``rows`` on."""
    return {
        "at": round(time.time(), 3),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": birth(os.getpid()),
        "command": sys.argv[1:],
        "folder": os.getcwd(),
        **job,
    }


def end_note(unfinished: int) -> dict[str, Any]:
    """The values of a ``batch-end`` note."""
    return {"at": round(time.time(), 3), "unfinished": unfinished}


class LeftNotes(BaseProgress):
    """A view that notes in a journal when the job will end, as soon as that is another moment than
    was noted, for those who follow the job from outside."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._noted: tuple[float, Left] | None = None

    def update(self, snapshot: Snapshot) -> None:
        """See Progress."""
        left, now = snapshot.left, time.time()
        if left is None or not self._due(left, now):
            return
        self._noted = now, left
        self._journal.note(LEFT, {"at": round(now, 3), **left_json(left)}, sync=False)

    def note(self, text: str) -> None:
        """Nothing: it is for people."""

    def _due(self, left: Left, now: float) -> bool:
        if self._noted is None:
            return True
        at, noted = self._noted
        expected = noted.after(now - at)
        moved = abs(left.high_s - expected.high_s) + abs(left.low_s - expected.low_s)
        return now - at >= _LEFT_S and moved > _MOVED * max(left.high_s, 1.0)
