"""Records of jobs that were started or looked at here, by which they are found again; and the jobs
that run now.

::

    jobs/ID/record.json     the job's spec, the output, and the process if it was started here
    jobs/ID/events.jsonl    what that process told (its --json)
    jobs/ID/stderr.txt      and what it said last

ID is a hash of the output's path: an output has one record. The oldest records go when there are
too many; journals and outputs are never touched.
"""

import contextlib
import hashlib
import json
import mmap
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from app.batch.journal.journal import JOURNAL, journal_path
from app.batch.journal.lines import END, RUN, JournalState
from app.batch.spec import spec_json
from app.batch.watch.process import BatchCommand, JobProcess, command_from
from app.here import at_home, here
from app.openai.answer import is_number
from quantize.disk import write_atomically
from quantize.fromjson import GARBLED
from runtimes.machine.locks import one_writer
from runtimes.paths import state_dir
from runtimes.untrusted import load_json

State = Literal["running", "finished", "stopped", "killed", "elsewhere", "gone"]

_MOST = 40


@dataclass(frozen=True, slots=True)
class JobRecord:
    """``output`` is absolute; ``pid`` and ``born`` are None for a job that was only looked at;
    ``at`` is when it was started or looked at last (Unix seconds)."""

    output: Path
    at: float
    command: BatchCommand | None = None
    pid: int | None = None
    born: float | None = None

    @property
    def child(self) -> JobProcess | None:
        """Process of the job, if it was started here and still runs."""
        if self.pid is None or self.born is None:
            return None
        child = JobProcess(self.pid, self.born)
        return child if child.alive else None

    @property
    def folder(self) -> Path:
        """Folder of its files."""
        name = hashlib.sha256(os.fsencode(self.output)).hexdigest()[:16]
        return _jobs() / name

    @property
    def events(self) -> Path:
        """Events of its process."""
        return self.folder / "events.jsonl"

    @property
    def errors(self) -> Path:
        """Stderr of its process."""
        return self.folder / "stderr.txt"

    def save(self) -> None:
        """Write it, and forget what is too old. Raises OSError."""
        with one_writer(self.folder):
            self._write()
        _forget_old()

    def _write(self) -> None:
        command = self.command
        data = {
            "output": str(self.output),
            "at": self.at,
            "spec": None if command is None else spec_json(command.spec),
            "folder": None if command is None else str(command.folder),
            "pid": self.pid,
            "born": self.born,
        }
        write_atomically(self.folder / "record.json", json.dumps(data))


def record_of(output: Path) -> JobRecord | None:
    """The record of an output."""
    return _read(JobRecord(absolute(output), 0.0).folder)


def seen(output: Path) -> None:
    """Remember a job that was looked at; the record of one that was started here stays."""
    record = JobRecord(absolute(output), 0.0)
    with contextlib.suppress(OSError):
        with one_writer(record.folder):  # another session may be starting it
            replace(record_of(output) or record, at=time.time())._write()
        _forget_old()


def records() -> list[JobRecord]:
    """All of them, the latest first."""
    found = filter(None, map(_read, _jobs().glob("*")))
    return sorted(found, key=lambda record: -record.at)


def _forget_old() -> None:
    for old in records()[_MOST:]:
        shutil.rmtree(old.folder, ignore_errors=True)  # named by a hash, in our own folder


def absolute(path: Path) -> Path:
    """One spelling for a path, also of a file that is not there yet."""
    return Path(os.path.normpath(here() / at_home(path)))


def _read(folder: Path) -> JobRecord | None:
    try:
        data = load_json(folder / "record.json")
        command = command_from(data)
        if not is_number(data["at"], 1e11) or not Path(data["output"]).name:
            return None
        return JobRecord(Path(data["output"]), data["at"], command, data["pid"], data["born"])
    except (OSError, *GARBLED):
        return None


def _jobs() -> Path:
    return state_dir() / "jobs"


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job that one may want to look at."""

    output: Path
    state: State  # gone: it has no journal any more
    at: float  # when something was written or, if not known, when it was looked at (Unix seconds)
    rows: int | None  # of its last run
    own: bool
    done: int | None = None  # of them: need nothing more


def known_jobs() -> list[KnownJob]:
    """Jobs known from before, and jobs that run now: running ones first, then by their last
    activity. Looks at every process and journal: call it in a thread."""
    running, found, known = dict(_running()), list[KnownJob](), set[Path]()
    for record in records():
        journal, own = journal_path(record.output), record.child is not None
        found.append(_look(record.output, record.at, own=own, alive=own or journal in running))
        known.add(journal)  # that of several outputs which are links to one file
    for journal in running.keys() - known:
        output = Path(str(journal).removesuffix(JOURNAL))
        found.append(_look(output, running[journal], own=False, alive=True))
    return sorted(found, key=lambda job: (job.state != "running", -job.at))


def _running() -> Iterator[tuple[Path, float]]:
    """Journals of the jobs on this machine, and since when they run: a job has its journal open for
    writing all the time."""
    import psutil

    for one in psutil.process_iter(["pid", "open_files", "create_time"]):
        for file in one.info["open_files"] or ():
            path = Path(file.path)
            if not path.name.endswith(JOURNAL) or getattr(file, "mode", "a") == "r":
                continue
            if state_dir() in path.parents:
                continue  # of a comparison
            run = last_run(path).run or {}
            if run.get("pid") != one.pid or (run.get("command") or ["batch"])[0] == "batch":
                yield path, one.info["create_time"]


def _look(output: Path, at: float, *, own: bool, alive: bool) -> KnownJob:
    journal = last_run(journal_path(output))
    run, end = journal.run, journal.end
    state: State = "killed" if journal.here else "elsewhere"
    if alive:
        state = "running"
    elif run is None:
        state = "gone"
    elif end is not None:
        state = "stopped" if end.get("unfinished") else "finished"
    if run is None:
        return KnownJob(output, state, at, None, own)
    with contextlib.suppress(OSError):
        at = journal_path(output).stat().st_mtime
    done, rows = run["reused"] + run["invalid"] + journal.whole_rows, run["rows"]
    return KnownJob(output, state, at, rows, own, min(done, rows))


# A whole row of a journal, and the end of the line before it.
_ROW = re.compile(rb'\n\{"key":.*(?=\n)')


class LastRun(JournalState):
    """The notes on a journal's last run, and how many lines it has of rows."""

    whole_rows = 0


def last_run(path: Path) -> LastRun:
    """A journal with nothing but the notes on its last run's begin and end, found from the end of
    the file without parsing rows; these are counted."""
    journal = LastRun(path)
    if not os.path.isfile(path):
        return journal  # a pipe would be waited for
    with (
        contextlib.suppress(OSError, ValueError),  # no file, or an empty one
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        begun = _take_last(journal, data, RUN, 0)
        if journal.run is not None:
            _take_last(journal, data, END, begun)
            journal.whole_rows = sum(1 for _ in _ROW.finditer(data, begun))
    return journal


def _take_last(journal: JournalState, data: mmap.mmap, kind: str, start: int) -> int:
    """Have the last note of ``kind`` that is not damaged taken; return where it begins."""
    mark = b'\n{"ingot":"' + kind.encode() + b'"'
    at, known = len(data), journal.whole_lines
    while journal.whole_lines == known and (at := data.rfind(mark, start, at)) >= 0:
        journal.take(at + 1, data[at + 1 : data.find(b"\n", at + 1) + 1])
    return max(at, start)
