"""Notes in the journal on the runs that wrote it, and what they tell while a job runs or later.

A run begins with ``batch-run``: ``at`` (Unix seconds), ``host`` and ``pid`` of the process and
``born`` (when it was started), the ``command`` (the arguments after ``ingot``) and the ``folder``
that it was started in, ``rows`` of the input's part, ``input_rows`` of all of it, ``invalid`` and
``reused`` among them, ``shard`` (I/N or null), ``format`` of the output, ``input``.
It ends with ``batch-end`` unless it was killed: ``at`` and ``unfinished`` (rows without a result).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.journal_lines import END, HEADER, RUN, lines_of, parse_line
from runtimes.errors import RequestError

_RECENT_S = 60.0


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


@dataclass(slots=True)
class RunLog:
    """The last run in a journal. ``done`` and ``failed`` count rows that it finished; ``first`` and
    ``last`` are when (Unix seconds); ``recent_*`` cover the last minute of its work."""

    settings: dict[str, Any]
    run: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    done: int = 0
    failed: int = 0
    tokens: int = 0
    recent_rows: int = 0
    recent_tokens: int = 0
    last: float = 0.0

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
    header: dict[str, Any] | None = None
    log = RunLog({})
    failed: set[int] = set()
    finished: deque[tuple[float, int]] = deque()  # within the last minute
    try:
        for offset, line in lines_of(path):
            record = parse_line(line)
            kind = None if record is None else record.get("ingot", "row")
            if offset == 0 and kind != HEADER:
                break
            if record is None:
                continue
            if kind == HEADER:
                header = record["settings"]
                log = RunLog(record["settings"])
            elif kind == RUN:
                log = RunLog(log.settings, record)
                failed, finished = set(), deque()
            elif kind == END:
                log.end = record
            elif not record["ok"]:
                failed.add(record["index"])
            else:
                failed.discard(record["index"])
                _add(log, finished, record["answer"])
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    if header is None:
        raise RequestError(f"{path} is not a journal of ingot batch")
    log.failed = len(failed)
    log.recent_rows, log.recent_tokens = len(finished), sum(tokens for _, tokens in finished)
    return log


def _add(log: RunLog, finished: deque[tuple[float, int]], answer: dict[str, Any]) -> None:
    tokens = answer.get("usage", {}).get("completion_tokens", 0)
    at = answer.get("created", 0.0)
    log.done += 1
    log.tokens += tokens
    log.last = max(log.last, at)
    finished.append((at, tokens))
    while finished[0][0] <= log.last - _RECENT_S:
        finished.popleft()
