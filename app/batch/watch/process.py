"""The process of a job: started so that it outlives the one that started it, told apart from a
process that got its number later, and asked to end by the signals of the command. That of a dry
run, which can be ended too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.batch.watch.command import BatchCommand
from app.exitcodes import ExitCode
from runtimes.errors import RequestError
from runtimes.machine import processes

_PLAIN = {"NO_COLOR": "1"}  # what is written to stderr is read
_TAIL = 16_384  # bytes of stderr that are looked at
_FRAME = " \t│╭╮╰╯─"


def start(arguments: Sequence[str], folder: Path, events: Path, errors: Path) -> JobProcess:
    """Start `ingot ARGUMENTS` in ``folder``, its stdout and stderr in files, so that nothing is
    lost and nothing breaks when whoever reads them goes away. Raises OSError."""
    with events.open("ab") as out, errors.open("ab") as err:
        process = processes.Child(
            *("-m", "app", *arguments),
            environment=_PLAIN,
            outlives=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # Ctrl-C and a closed terminal are not for it
        )
    return JobProcess(process.pid, processes.birth(process.pid) or 0.0, process)


class JobProcess:
    """A process by its number and when it was born; ``process`` if this one started it."""

    def __init__(self, pid: int, born: float, process: processes.Child | None = None) -> None:
        self.pid = pid
        self.born = born
        self._process = process

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        if self._process is not None:
            return self._process.poll() is None
        return processes.is_alive(self.pid, self.born)

    @property
    def code(self) -> int | None:
        """Its exit code (negative: the signal that killed it); None while it runs, or when this
        process did not start it."""
        return None if self._process is None else self._process.poll()

    def ask_to_end(self) -> None:
        """Once: finish the running rows. Twice: stop at once. SIGTERM does what Ctrl-C does, and
        unlike SIGINT no shell has it ignored from birth."""
        if self.alive:
            os.kill(self.pid, signal.SIGTERM)


class DryRunProcess:
    """An `ingot batch --dry-run` at work."""

    def __init__(self, command: BatchCommand) -> None:
        """Start it. Raises OSError."""
        head, *rest = command.arguments
        self._errors = tempfile.NamedTemporaryFile(prefix="ingot-dry-run-")  # noqa: SIM115
        self._process = processes.Child(
            *("-m", "app", head, "--dry-run", "--json", *rest),
            environment=_PLAIN,
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def found(self) -> dict[str, Any]:
        """Wait for it; what it found, as its --json has it. Raises RequestError with what the
        command says."""
        with self._process, self._errors:
            out, _ = self._process.communicate()
            said = last_words(Path(self._errors.name))
        if self._process.returncode not in (ExitCode.DONE, ExitCode.ROWS_FAILED):
            raise RequestError(said or "the dry run was ended")
        found: dict[str, Any] = json.loads(out)
        return found

    def cancel(self) -> None:
        """End it; ``found`` raises then."""
        self._process.kill()


def last_words(errors: Path) -> str:
    """What the command said last on stderr: its error, with all of its lines, else the last line;
    empty if nothing."""
    try:
        with errors.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.strip(_FRAME) for line in text.splitlines()]
    lines = [line for line in lines if line]
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith("ingot: "):
            return "\n".join([lines[at].removeprefix("ingot: "), *lines[at + 1 :]])
    return lines[-1] if lines else ""
