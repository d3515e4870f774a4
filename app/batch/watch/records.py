"""Which jobs were started or looked at here, so that they are found again.

::

    jobs/ID/record.json     the command, the output, and the process if it was started here
    jobs/ID/events.jsonl    what that process told (its --json)
    jobs/ID/stderr.txt      and what it said last

ID is a hash of the output's path: an output has one record. The oldest records go when there are
too many; journals and outputs are never touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.batch.watch.command import Command
from runtimes.paths import state_dir

_MOST = 40


@dataclass(frozen=True, slots=True)
class Record:
    """``output`` is absolute; ``pid`` and ``born`` are None for a job that was only looked at;
    ``at`` is when it was started or looked at last (Unix seconds)."""

    output: Path
    at: float
    command: Command | None = None
    pid: int | None = None
    born: float | None = None

    @property
    def folder(self) -> Path:
        """Where its files are."""
        name = hashlib.sha256(os.fsencode(self.output)).hexdigest()[:16]
        return _jobs() / name

    @property
    def events(self) -> Path:
        """What its process tells."""
        return self.folder / "events.jsonl"

    @property
    def errors(self) -> Path:
        """What its process says on stderr."""
        return self.folder / "stderr.txt"

    def save(self) -> None:
        """Write it, and forget what is too old. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self.command
        data = {
            "output": str(self.output),
            "at": self.at,
            "command": None if command is None else list(command.arguments),
            "folder": None if command is None else str(command.folder),
            "pid": self.pid,
            "born": self.born,
        }
        partial = self.folder / f".record.{os.getpid()}"
        partial.write_text(json.dumps(data), encoding="utf-8")
        partial.replace(self.folder / "record.json")
        for old in records()[_MOST:]:
            shutil.rmtree(old.folder, ignore_errors=True)


def record_of(output: Path) -> Record | None:
    """The record of an output."""
    return _read(Record(absolute(output), 0.0).folder)


def seen(output: Path) -> None:
    """Remember a job that was looked at; the record of one that was started here stays."""
    old = record_of(output)
    now = time.time()
    with contextlib.suppress(OSError):
        if old is None:
            Record(absolute(output), now).save()
        else:
            Record(old.output, now, old.command, old.pid, old.born).save()


def records() -> list[Record]:
    """All of them, the latest first."""
    return sorted(_all(), key=lambda record: -record.at)


def absolute(path: Path) -> Path:
    """One spelling for a path, also of a file that is not there yet."""
    return Path(os.path.abspath(path.expanduser()))


def _all() -> Iterator[Record]:
    with contextlib.suppress(FileNotFoundError):
        for folder in _jobs().iterdir():
            if (found := _read(folder)) is not None:
                yield found


def _read(folder: Path) -> Record | None:
    try:
        data = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        command = None
        if data["command"] is not None:
            command = Command(tuple(data["command"]), Path(data["folder"]))
        return Record(Path(data["output"]), float(data["at"]), command, data["pid"], data["born"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _jobs() -> Path:
    return state_dir() / "jobs"
