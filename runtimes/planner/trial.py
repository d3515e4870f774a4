"""A candidate in a process of its own, so that a native crash ends the trial and nothing else."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from runtimes.errors import RuntimeMissingError
from runtimes.machine.linechild import LineChild, LineChildError
from runtimes.models.memory import estimate, largest_context
from runtimes.planner.candidates import Candidate, PlanTask
from runtimes.planner.plan import TRIAL_TOKENS
from runtimes.planner.trial_child import LEAST_DEPTH
from runtimes.settings import RunnerSettings

# Longer than any trial takes whose candidate one would want to choose. A sample at a depth fills
# it first, and where it cannot it is also taken at the start.
_LOAD_S, _SAMPLE_S = 120.0, 180.0
_AT_ONCE = 6  # trials that may be loaded at the same time, each with a cache of its own


class TrialError(Exception):
    """The candidate cannot be measured; the text says why, for the user."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens a second at the trial's depth, extrapolated to it where it could not be filled."""

    prefill_tps: float  # of one prompt; 0 where it was not timed
    decode_tps: float  # of all rows that decoded together
    depth: int  # tokens behind which the sample was taken

    def slowed(self, by: float) -> Self:
        """As it would be without the part that a whole round was faster."""
        return replace(self, prefill_tps=self.prefill_tps / by, decode_tps=self.decode_tps / by)


class Trial(LineChild):
    """A loaded candidate."""

    def __init__(self, path: Path, settings: RunnerSettings, depth: int = 0) -> None:
        """Load the file. A context with less room than TRIAL_TOKENS behind ``depth`` is filled as
        far as it has. Raises TrialError when the candidate does not load.
        """
        self._depth = depth
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
        asked = {"prompt": prompt, "rows": rows, "depth": self._depth}
        return Sample(**self.ask(asked, _SAMPLE_S))

    def prefill(self, prompt: int, piece: int) -> float:
        """Tokens a second of one prompt that goes in by steps of ``piece`` tokens.

        Raises TrialError.
        """
        return float(self.ask({"prompt": prompt, "piece": piece}, _SAMPLE_S)["prefill_tps"])


def load_trial(candidate: Candidate, task: PlanTask, slots: int) -> Trial:
    """A trial of ``slots`` rows at the task's depth, or with as much room as memory has for trials
    beside each other. Raises TrialError when the candidate does not load."""
    model = candidate.model
    # A budget of --kv-tokens is for rows of a whole context.
    sized = replace(candidate.sized(task, slots), kv_tokens=None)
    context = TRIAL_TOKENS + task.depth
    if task.depth > LEAST_DEPTH and not candidate.on_gpu(task):
        least = TRIAL_TOKENS + LEAST_DEPTH
        need = estimate(model, replace(sized, context=least)).total
        room = need + max(0, task.usable - need) // _AT_ONCE
        context = min(context, max(least, largest_context(model, sized, room)))
    return Trial(model.path, replace(sized, context=context), task.depth)
