"""How many tokens a step may have: measured on the chosen file alone.

It decides how a long prompt is cut. Smaller steps need less memory and keep other rows waiting
less, larger ones feed wide hardware better; on one file's own kernels that is quickly seen.
"""

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from runtimes.planner.candidates import Candidate, PlanTask
from runtimes.planner.trial import Trial, TrialError
from runtimes.settings import RunnerSettings

logger = logging.getLogger(__name__)

_SIZES = (128, 256, 512)
_GPU_SIZES = (*_SIZES, 1024, 2048)
_ROUNDS = 3
_SAMPLE_S = 2.5  # a prompt that takes longer is too long to be tried three times
_ENOUGH = 0.98  # of the best speed


@dataclass(frozen=True, slots=True)
class StepSize:
    """The choice."""

    tokens: int  # of a step
    # What a prompt of the largest size does in steps of each size, the median of the rounds.
    prefill_tps: dict[int, float]  # empty where nothing was measured

    def reason(self) -> str | None:
        """Why, with the figures; None where nothing was measured."""
        if not self.prefill_tps:
            return None
        most = max(self.prefill_tps)
        tried = ", ".join(f"{tps:,.0f} tok/s by {n}" for n, tps in self.prefill_tps.items())
        return f"steps of up to {self.tokens} tokens: a prompt of {most} goes in at {tried}"


def step_size(
    candidate: Candidate,
    task: PlanTask,
    slots: int,
    prefill_tps: float,
    progress: Callable[[str], None] = logger.info,
) -> StepSize:
    """Measure and choose; what was fixed, or the default where nothing can be told."""
    usual = RunnerSettings().batch
    if task.overrides.batch:
        return StepSize(task.overrides.batch, {})
    sizes = sizes_to_try(candidate, task, slots, prefill_tps)
    if len(sizes) < 2:
        return StepSize(usual, {})
    progress(f"trying steps of {', '.join(map(str, sizes))} tokens")
    try:
        found = _measure(candidate, sizes)
    except TrialError:
        return StepSize(usual, {})
    return StepSize(choose_size(found, usual), found)


def sizes_to_try(
    candidate: Candidate, task: PlanTask, slots: int, prefill_tps: float
) -> tuple[int, ...]:
    """Those that have room for a token of every row, fit a slot, and take no more than seconds."""
    sizes = _GPU_SIZES if candidate.on_gpu(task) else _SIZES
    most = min(task.context(candidate.model), int(_SAMPLE_S * prefill_tps))
    return tuple(size for size in sizes if slots <= size <= most)


def choose_size(prefill_tps: dict[int, float], usual: int) -> int:
    """The smallest that is about as fast as the best. ``usual`` where the largest that was tried is
    the only fast one and smaller than that: a larger one might be faster still."""
    best = max(prefill_tps.values())
    chosen = min(size for size, tps in prefill_tps.items() if tps >= _ENOUGH * best)
    return max(chosen, usual) if chosen == max(prefill_tps) else chosen


def _measure(candidate: Candidate, sizes: Sequence[int]) -> dict[int, float]:
    """One prompt of the largest size, in turn by steps of each. Raises TrialError."""
    prompt = sizes[-1]
    samples: dict[int, list[float]] = {size: [] for size in sizes}
    asked = replace(candidate.settings, slots=1, context=prompt + 8, batch=prompt)
    with Trial(candidate.model.path, asked) as trial:
        for _ in range(_ROUNDS):
            for size in sizes:
                samples[size].append(trial.prefill(prompt, size))
    return {size: statistics.median(taken) for size, taken in samples.items()}
