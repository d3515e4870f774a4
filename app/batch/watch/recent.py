"""The jobs that one may want to look at: those known from before, and those that run now."""

from __future__ import annotations

import mmap
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app.batch.journal.journal import journal_path
from app.batch.journal.lines import END, RUN, LineReader
from app.batch.watch import process, records
from app.batch.watch.command import Command, batch_arguments

State = Literal["running", "finished", "stopped", "killed", "elsewhere", "gone"]


@dataclass(frozen=True, slots=True)
class KnownJob:
    """``at`` is when its last run began or, if that is not known, when it was last looked at (Unix
    seconds); ``rows`` are those of that run; ``gone`` jobs have no journal any more."""

    output: Path
    state: State
    at: float
    rows: int | None
    own: bool


def known_jobs() -> list[KnownJob]:
    """Running ones first, then the latest. Looks at every process and journal: call it in a
    thread."""
    running = dict(_running())
    found: dict[Path, KnownJob] = {}
    for record in records.records():
        alive = False
        if record.pid is not None and record.born is not None:
            alive = process.Child(record.pid, record.born).alive
        found[record.output] = _look(
            record.output, record.at, own=alive, alive=alive or record.output in running
        )
    for output, at in running.items():
        if output not in found:
            found[output] = _look(output, at, own=False, alive=True)
    return sorted(found.values(), key=lambda job: (job.state != "running", -job.at))


def _running() -> Iterator[tuple[Path, float]]:
    """The outputs of the jobs on this machine, and since when they run."""
    import psutil

    for one in psutil.process_iter(["pid", "cmdline", "create_time", "status"]):
        arguments = batch_arguments(one.info["cmdline"] or [])
        if arguments is None or one.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        try:
            folder = Path(one.cwd())
        except psutil.Error:
            continue
        asked = Command(arguments, folder).asked()
        if asked is not None:
            yield records.absolute(asked.output), one.info["create_time"]


def _look(output: Path, at: float, *, own: bool, alive: bool) -> KnownJob:
    run, end = last_run(journal_path(output))
    state: State = "running"
    if not alive:
        if run is None:
            state = "gone"
        elif end is not None:
            state = "stopped" if end.get("unfinished") else "finished"
        else:
            state = "elsewhere" if run.get("host") != socket.gethostname() else "killed"
    begun = at if run is None else float(run.get("at", time.time()))
    return KnownJob(output, state, begun, None if run is None else run.get("rows"), own)


def last_run(journal: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The notes on the last run's begin and end, found from the end of the file without reading
    rows; None for what is not there."""
    try:
        with (
            journal.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            at, run = _last(data, RUN, 0)
            return run, _last(data, END, at)[1] if run is not None else None
    except (OSError, ValueError):  # no file, or an empty one
        return None, None


def _last(data: mmap.mmap, kind: str, start: int) -> tuple[int, dict[str, Any] | None]:
    mark = b'\n{"ingot":"' + kind.encode() + b'"'
    at = len(data)
    while (at := data.rfind(mark, start, at)) >= 0:
        end = data.find(b"\n", at + 1)
        note = LineReader().again(at + 1, data[at + 1 : end + 1])
        if note is not None:  # whole, and not damaged
            return at, note
    return start, None
