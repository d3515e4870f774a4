"""A candidate in a process of its own, so that a native crash ends the trial and nothing else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtimes.errors import RuntimeMissingError
from runtimes.machine.linechild import LineChild, LineChildError
from runtimes.planner.trial_child import DECODE_STEPS, SHORT_PROMPT
from runtimes.settings import RunnerSettings

PROMPT = 128  # tokens of the timed prefill: enough for every kernel's large tiles
# Longer than any trial takes whose candidate one would want to choose.
_LOAD_S, _SAMPLE_S = 120.0, 60.0


class TrialError(Exception):
    """The candidate cannot be measured; the text says why, for the user."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens a second: one prompt's prefill (None where it was not timed), and of all rows that
    decoded together."""

    prefill_tps: float | None
    decode_tps: float


CONTEXT = max(PROMPT, SHORT_PROMPT + DECODE_STEPS) + 8  # tokens that a slot needs for a sample


class Trial:
    """A loaded candidate. A context manager; leaving it ends the process."""

    def __init__(self, path: Path, settings: RunnerSettings) -> None:
        """Raises TrialError when the candidate does not load."""
        words = (path, json.dumps(asdict(settings)))
        self._child = LineChild("runtimes.planner.trial_child", *words, name="its process")
        try:
            with _explained():
                loaded = self._child.answer(_LOAD_S)
            if "error" in loaded:
                raise TrialError(loaded["error"])
        except BaseException:
            self.close()
            raise
        self.slots: int = loaded["slots"]

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
        self._child.close()

    def __enter__(self) -> Trial:
        """The trial itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def _ask(self, question: dict[str, int]) -> dict[str, Any]:
        with _explained():
            answer: dict[str, Any] = self._child.ask(question, _SAMPLE_S)
        return answer


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """A child that cannot be asked is its candidate's failure; what Python cannot import is not."""
    try:
        yield
    except LineChildError as error:
        kind = RuntimeMissingError if error.why == "import" else TrialError
        raise kind(str(error)) from error
