"""A candidate in a process of its own, so that a native crash ends the trial and nothing else."""

import json
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
    """Tokens a second."""

    prefill_tps: float | None  # of one prompt; None where it was not timed
    decode_tps: float  # of all rows that decoded together


CONTEXT = max(PROMPT, SHORT_PROMPT + DECODE_STEPS) + 8  # tokens that a slot needs for a sample


class Trial(LineChild):
    """A loaded candidate."""

    def __init__(self, path: Path, settings: RunnerSettings) -> None:
        """Raises TrialError when the candidate does not load."""
        asked = json.dumps(asdict(settings))
        super().__init__("runtimes.planner.trial_child", path, asked, name="its process")
        try:
            self.answer(_LOAD_S)
        except BaseException:
            self.close()
            raise

    def answer(self, limit_s: float | None = None) -> Any:
        """Raises TrialError for the candidate's own failure; what Python cannot import is not."""
        try:
            found = super().answer(limit_s)
        except LineChildError as error:
            kind = RuntimeMissingError if error.why == "import" else TrialError
            raise kind(str(error)) from error
        if "error" in found:
            raise TrialError(found["error"])
        return found

    def sample(self, prompt: int, rows: int) -> Sample:
        """Measure once; a ``prompt`` of 0 tokens is not timed. Raises TrialError."""
        return Sample(**self.ask({"prompt": prompt, "rows": rows}, _SAMPLE_S))

    def prefill(self, prompt: int, piece: int) -> float:
        """Tokens a second of one prompt that goes in by steps of ``piece`` tokens.

        Raises TrialError.
        """
        return float(self.ask({"prompt": prompt, "piece": piece}, _SAMPLE_S)["prefill_tps"])
