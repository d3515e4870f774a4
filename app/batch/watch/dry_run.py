"""The dry run of a job: its rows, tokens, memory and time, in a process that can be ended."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from app.batch.watch import process
from app.batch.watch.command import Command
from app.figures import duration
from runtimes.errors import RequestError
from runtimes.machine.processes import Child


class DryRun:
    """An `ingot batch --dry-run` at work."""

    def __init__(self, command: Command) -> None:
        """Start it. Raises OSError."""
        head, *rest = command.arguments
        self._errors = tempfile.NamedTemporaryFile(prefix="ingot-dry-run-")  # noqa: SIM115
        self._process = Child(
            *("-m", "app", head, "--dry-run", "--json", *rest),
            environment=process.PLAIN,
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def lines(self) -> list[str]:
        """Wait for it; what it found, short. Raises RequestError with what the command says."""
        with self._process, self._errors:
            out, _ = self._process.communicate()
            said = process.last_words(Path(self._errors.name))
        try:
            return _lines(json.loads(out))
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(said or "the dry run was ended") from error

    def cancel(self) -> None:
        """End it; ``lines`` raises then."""
        self._process.kill()


def _lines(found: dict[str, Any]) -> list[str]:
    seconds = found["most_seconds"]
    time = "not known (ingot plan measures this machine)"
    if seconds is not None:
        time = f"at most {duration(seconds)}"
    total, free = found["memory"]["total"] / 2**30, found["free_memory"] / 2**30
    return [
        f"{found['rows']:,} rows: {found['valid']:,} valid, {found['invalid']:,} invalid",
        f"{found['prompt_tokens']:,} prompt tokens, "
        f"at most {found['most_answer_tokens']:,} of answers",
        f"longest prompt {found['longest_prompt']['tokens']:,} of a context of "
        f"{found['context']:,}",
        f"memory {total:.2f} of {free:.1f} GiB free, {found['slots']} slots",
        f"time: {time}",
        *(f"{p['where']}: {p['message']}" for p in found["problems"][:3]),
    ]
