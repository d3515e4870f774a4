"""A candidate in a process of its own, so that a native crash ends the trial and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from runtimes.planner.trial_child import DECODE_STEPS, SHORT_PROMPT
from runtimes.settings import RunnerSettings

# Longer than any trial takes whose candidate one would want to choose.
_LOAD_S, _SAMPLE_S = 120.0, 60.0
_ROOT = Path(__file__).resolve().parents[2]


class TrialError(Exception):
    """The candidate cannot be measured; the text says why, for the user."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens a second: one prompt's prefill (None where it was not timed), and of all rows that
    decoded together."""

    prefill_tps: float | None
    decode_tps: float


def trial_context(prompt: int) -> int:
    """Tokens that a slot needs for a sample."""
    return max(prompt, SHORT_PROMPT + DECODE_STEPS) + 8


class Trial:
    """A loaded candidate. A context manager; leaving it ends the process."""

    def __init__(self, path: Path, settings: RunnerSettings) -> None:
        """Raises TrialError when the candidate does not load."""
        search = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "runtimes.planner.trial_child",
                str(path),
                json.dumps(asdict(settings)),
            ],
            env={**os.environ, "PYTHONPATH": search},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        try:
            self.slots: int = self._answer(_LOAD_S)["slots"]
        except BaseException:
            self.close()
            raise

    def sample(self, prompt: int, rows: int) -> Sample:
        """Measure once; a ``prompt`` of 0 tokens is not timed.

        Raises TrialError when the process dies or does not answer.
        """
        return Sample(**self._ask({"prompt": prompt, "rows": rows}))

    def prefill(self, prompt: int, piece: int) -> float:
        """Tokens a second of one prompt that goes in by steps of ``piece`` tokens.

        Raises TrialError when the process dies or does not answer.
        """
        return float(self._ask({"prompt": prompt, "piece": piece})["prefill_tps"])

    def close(self) -> None:
        """End the process. A second call does nothing."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def __enter__(self) -> Trial:
        """The trial itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put("")
        stream.close()

    def _ask(self, question: dict[str, int]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died: what it died of comes below
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return self._answer(_SAMPLE_S)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise TrialError(f"no answer within {limit_s:g} s") from None
        if not line:
            raise TrialError(self._ending())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TrialError(answer["error"])
        return answer

    def _ending(self) -> str:
        code = self._process.wait()
        if code < 0 and -code in set(signal.Signals):
            return f"ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"
