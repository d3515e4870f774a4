"""Notes in the journal on the runs that wrote it, and what they tell while a job runs or later.

A run begins with ``batch-run``: ``at`` (Unix seconds), ``host`` and ``pid`` of the process and
``born`` (when it was started), the ``command`` (the arguments after ``ingot``) and the ``folder``
that it was started in, ``rows`` of the input's part, ``input_rows`` of all of it, ``invalid`` and
``reused`` among them, ``shard`` (I/N or null), ``format`` of the output, ``input``.
While it runs, ``batch-left`` says how long it will take: ``at`` and the figures of ``left_json``.
It ends with ``batch-end`` unless it was killed: ``at`` and ``unfinished`` (rows without a result).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.batch.journal.journal import Journal
from app.batch.journal.lines import END, HEADER, LEFT, RUN, Damaged, LineReader, lines_of
from app.batch.report.progress import Silent, Snapshot
from app.batch.report.time_left import Left, left_json, left_of
from app.batch.settings import comparable
from runtimes.errors import RequestError

RECENT_S = 60.0
_LEFT_S, _MOVED = 5.0, 0.1  # notes on the time left: how often at most, and after which change


def run_note(
    *,
    rows: int,
    input_rows: int,
    invalid: int,
    reused: int,
    shard: str | None,
    format: str,
    input: str,
) -> dict[str, Any]:
    """The values of a ``batch-run`` note of this process."""
    import psutil

    return {
        "at": round(time.time(), 3),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": psutil.Process().create_time(),
        "command": sys.argv[1:],
        "folder": os.getcwd(),
        "rows": rows,
        "input_rows": input_rows,
        "invalid": invalid,
        "reused": reused,
        "shard": shard,
        "format": format,
        "input": input,
    }


def end_note(unfinished: int) -> dict[str, Any]:
    """The values of a ``batch-end`` note."""
    return {"at": round(time.time(), 3), "unfinished": unfinished}


class LeftNotes(Silent):
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


@dataclass(slots=True)
class RunLog:
    """The last run in a journal. ``done`` and ``failed`` count rows that it finished, ``last`` is
    when it did so last (Unix seconds); ``finished`` has the moments and tokens of the rows of its
    last minute."""

    settings: dict[str, Any]
    run: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    done: int = 0
    failed: int = 0
    tokens: int = 0
    last: float = 0.0
    finished: deque[tuple[float, int]] = field(default_factory=deque)
    damaged: tuple[Damaged, ...] = ()  # lines that no run has told of
    settings_lost: bool = False
    left: dict[str, Any] | None = None  # the last note on it

    def recent(self, now: float) -> tuple[int, int]:
        """The rows and tokens of the minute before ``now``."""
        tokens = [tokens for at, tokens in self.finished if at > now - RECENT_S]
        return len(tokens), sum(tokens)

    def left_at(self, now: float) -> Left | None:
        """The time left, by the last note on it."""
        if self.left is None or (left := left_of(self.left)) is None:
            return None
        return left.after(now - self.left["at"])

    @property
    def running(self) -> bool:
        """Whether its process is alive, as far as this machine can tell."""
        run = self.run
        if run is None or self.end is not None or run.get("host") != socket.gethostname():
            return False
        import psutil

        try:
            born: float = psutil.Process(run["pid"]).create_time()
        except psutil.Error:
            return False
        noted: float = run["born"]
        return abs(born - noted) < 1.0


def read_runs(path: Path) -> RunLog:
    """Read a journal, also one that another process is writing to. Raises RequestError when there
    is none."""
    lines = LineReader()
    log = RunLog({})
    failed: set[int] = set()
    try:
        for offset, line in lines_of(path):
            if not line.endswith(b"\n"):
                break  # it is being written, or a crash cut it off: nothing that was finished
            record = lines.take(offset, line)
            if record is None:
                continue
            kind = record.get("ingot", "row")
            if kind == HEADER:
                if comparable(record["settings"]) != comparable(log.settings):
                    log = RunLog(record["settings"])
            elif kind == RUN:
                log = RunLog(log.settings, record)
                failed = set()
            elif kind == END:
                log.end = record
            elif kind == LEFT:
                log.left = record
            elif kind != "row":
                continue
            elif not record["ok"]:
                failed.add(record["index"])
            else:
                failed.discard(record["index"])
                _add(log, record["answer"])
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    if not lines.good:
        raise RequestError(f"{path} is not a journal of ingot batch, or none of its lines is whole")
    log.failed = len(failed)
    log.damaged, log.settings_lost = tuple(lines.damaged), lines.settings_lost
    return log


def _add(log: RunLog, answer: dict[str, Any]) -> None:
    tokens = answer.get("usage", {}).get("completion_tokens", 0)
    at = answer.get("created", 0.0)
    log.done += 1
    log.tokens += tokens
    log.last = max(log.last, at)
    log.finished.append((at, tokens))
    while log.finished[0][0] <= log.last - RECENT_S:
        log.finished.popleft()
