"""`ingot compare --prompts` as a process that a screen starts, follows by its journals, ends."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.batch.journal.journal import journal_path
from app.batch.watch.follow import FollowedJournal
from app.batch.watch.process import last_words
from app.batch.watch.rows import Rows
from app.compare.prompts import PromptsJob, labels_of
from app.exitcodes import ExitCode
from app.here import here, whole
from runtimes.machine.processes import Child
from runtimes.paths import state_dir

_GENTLE_S = 20.0  # to finish the running answers before it is killed


@dataclass(frozen=True, slots=True)
class CompareProgress:
    """``file`` is at work, from 0; rows are those of one file, None before they are counted;
    ``left_s`` is about how long all of it still takes, None while nobody knows."""

    file: int = 0
    done: int = 0  # of all files
    rows: int | None = None
    failed: int = 0
    left_s: float | None = None
    running: bool = True
    stopped: bool = False  # by the user
    error: str = ""

    def share(self, files: int) -> float:
        """0 to 1."""
        return self.done / (self.rows * files) if self.rows else 0.0


class PromptsProcess:
    """It ends with this process; what was answered is kept. ``poll`` reads on and may take a while;
    the rest takes no time."""

    def __init__(self, job: PromptsJob) -> None:
        """Start it. Raises OSError."""
        self.job = job
        self.labels = labels_of(job.entries)
        self._errors = tempfile.NamedTemporaryFile(prefix="ingot-compare-")  # noqa: SIM115
        self._journals = [
            FollowedJournal(journal_path(job.answers(entry)), Rows()) for entry in job.entries
        ]
        self._began = time.time()
        self._told_to_end: float | None = None
        self._process = Child(
            *("-m", "app", *arguments(job)),
            environment={"NO_COLOR": "1"},
            # All paths are from the root; only a folder that is there can be worked in.
            cwd=None if here().is_absolute() else state_dir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the command."""
        return self._process.pid

    def stop(self) -> None:
        """Have it end; a second time at once."""
        if self._process.poll() is not None:
            return
        if self._told_to_end is None:
            self._told_to_end = time.monotonic()
            self._process.terminate()
        else:
            self._process.kill()

    def poll(self) -> CompareProgress:
        """How far it is."""
        code = self._process.poll()
        overdue = self._told_to_end is not None and time.monotonic() - self._told_to_end > _GENTLE_S
        if code is None and overdue:
            self._process.kill()
        for journal in self._journals:
            while journal.read():
                pass
        mine = [one for one in self._journals if one.run and one.run.get("pid") == self.pid]
        runs = [(one, one.run or {}) for one in mine]
        done = sum(run["reused"] + run["invalid"] + one.done + one.failed for one, run in runs)
        asked = sum(one.done + one.failed for one in mine)
        rows = int(runs[0][1]["rows"]) if runs else None
        left = None
        if rows is not None and asked:
            left = (time.time() - self._began) / asked * (rows * len(self._journals) - done)
        good = (ExitCode.DONE, ExitCode.ROWS_FAILED)
        stopped = self._told_to_end is not None and code not in (None, *good)
        error = ""
        if code not in (None, *good) and not stopped:
            error = last_words(Path(self._errors.name)) or f"it ended with exit code {code}"
        return CompareProgress(
            max(len(mine) - 1, 0),
            done,
            rows,
            sum(run["invalid"] + one.failed for one, run in runs),
            left,
            code is None,
            stopped,
            error,
        )


def arguments(job: PromptsJob) -> Iterator[str]:
    """The arguments after `ingot` that say ``job``."""
    yield "compare"
    yield from (str(whole(entry.path)) for entry in job.entries)
    yield f"--prompts={job.prompts}"
    yield f"--max-tokens={job.sampling.max_tokens}"
    if job.limit is not None:
        yield f"--limit={job.limit}"
    yield from ("--json", "--quiet")
