"""The dry run of a job: its rows, tokens, memory and time, in a process that can be ended."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from app.batch.watch import process
from app.batch.watch.command import Command
from app.figures import duration
from runtimes.errors import RequestError
from runtimes.machine.processes import Child


@dataclass(frozen=True, slots=True)
class Lookahead:
    """As `ingot batch --dry-run --json` tells them: ``memory`` and ``free_memory`` are bytes,
    ``most_seconds`` is None when this machine was not measured."""

    rows: int
    valid: int
    invalid: int
    prompt_tokens: int
    most_answer_tokens: int
    longest_prompt: dict[str, Any]
    model: str
    slots: int
    context: int
    memory: dict[str, Any]
    free_memory: int
    most_seconds: float | None
    problems: list[dict[str, str]]

    def lines(self) -> list[str]:
        """For people, short."""
        total = self.memory["total"]
        time = (
            "not known (ingot plan measures this machine)"
            if self.most_seconds is None
            else f"at most {duration(self.most_seconds)}"
        )
        return [
            f"{self.rows:,} rows: {self.valid:,} valid, {self.invalid:,} invalid",
            f"{self.prompt_tokens:,} prompt tokens, at most {self.most_answer_tokens:,} of answers",
            f"longest prompt {self.longest_prompt['tokens']:,} of a context of {self.context:,}",
            f"memory {total / 2**30:.2f} of {self.free_memory / 2**30:.1f} GiB free, "
            f"{self.slots} slots",
            f"time: {time}",
            *(f"{p['where']}: {p['message']}" for p in self.problems[:3]),
        ]


class LookaheadRun:
    """A dry run at work."""

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

    def result(self) -> Lookahead:
        """Wait for it. Raises RequestError with what the command says."""
        with self._process, self._errors:
            out, _ = self._process.communicate()
            said = process.last_words(Path(self._errors.name))
        try:
            found = json.loads(out)
            return Lookahead(**{field.name: found[field.name] for field in fields(Lookahead)})
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(said or "the dry run was ended") from error

    def cancel(self) -> None:
        """End it; ``result`` raises then."""
        self._process.kill()
