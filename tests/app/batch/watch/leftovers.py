"""Processes of jobs that a test has left running."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from app.batch.watch import records
from app.batch.watch.process import JobProcess


def kill_jobs() -> None:
    """Kill those of all records; not one that has the number of a job since, which is somebody
    else's."""
    for record in records.records():
        if record.pid is None or record.born is None:
            continue
        if JobProcess(record.pid, record.born).alive:
            with suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGKILL)
