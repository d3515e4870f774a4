"""The dry run of a job: its rows, tokens, memory and time, in a process that can be ended."""

import subprocess
import tempfile
from pathlib import Path

from app.batch.watch import process
from app.batch.watch.command import Command
from app.exitcodes import ExitCode
from runtimes.errors import RequestError
from runtimes.machine.processes import Child


class DryRun:
    """An `ingot batch --dry-run` at work."""

    def __init__(self, command: Command) -> None:
        """Start it. Raises OSError."""
        head, *rest = command.arguments
        self._errors = tempfile.NamedTemporaryFile(prefix="ingot-dry-run-")  # noqa: SIM115
        self._process = Child(
            *("-m", "app", head, "--dry-run", *rest),
            environment=process.PLAIN,
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def lines(self) -> list[str]:
        """Wait for it; what it found. Raises RequestError with what the command says."""
        with self._process, self._errors:
            out, _ = self._process.communicate()
            said = process.last_words(Path(self._errors.name))
        if self._process.returncode not in (ExitCode.DONE, ExitCode.ROWS_FAILED):
            raise RequestError(said or "the dry run was ended")
        return out.decode().splitlines()

    def cancel(self) -> None:
        """End it; ``lines`` raises then."""
        self._process.kill()
