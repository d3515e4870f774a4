"""How far the planner's pick is from the best of an exhaustive sweep."""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.bench.harness import BenchOptions, BenchResult, Samples
from app.models.planning import plan_files, task_for
from app.options import ModelOptions
from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile
from runtimes.planner.candidates import (
    Candidate,
    PlanTask,
    candidates,
    sampling_variants,
    split_by_memory,
    thread_variants,
)
from runtimes.planner.plan import WORKLOADS, Plan, PlanWorkload, Profile
from runtimes.planner.search import Round, make_plan, without_drift
from runtimes.planner.trial import load_trial

# Samples are short, so that all settings of a round meet the same machine; medians want many.
_ROUNDS = 4  # a repeat
_PROFILE: Profile = "balanced"


@dataclass(frozen=True, slots=True)
class _Point:
    """One setting of the sweep; scores as ``runtimes.planner.choose.score`` defines them."""

    candidate: Candidate
    slots: int
    samples: Samples

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        about = self.candidate.describe().to_json()
        score = self.samples.median
        return {"candidate": about, "slots": self.slots, "score": score, "samples": self.samples}

    def is_pick_of(self, plan: Plan) -> bool:
        """Whether it is what the planner chose."""
        chosen, model = plan.settings, self.candidate.model
        sized = replace(
            self.candidate.settings, slots=self.slots, context=chosen.context, batch=chosen.batch
        )
        return str(model.path) == plan.path and sized == chosen

    def __str__(self) -> str:
        settings = self.candidate.settings
        layout = " unified" if settings.unified_kv else ""
        layout += " device sampling" if settings.device_sampling else ""
        file = self.candidate.model.path.name
        return (
            f"{self.samples:10.4g}  {file}{layout}, {self.slots} slots, {settings.threads} threads"
        )


def plan(folder: Path, options: BenchOptions) -> BenchResult:
    """The planner against a sweep, for each workload."""
    results = [regret(str(folder), workload, options.repeats) for workload in WORKLOADS]
    lines = itertools.chain.from_iterable(result.lines for result in results)
    return BenchResult({"workloads": [result.figures for result in results]}, [*lines])


def regret(model: str, workload: PlanWorkload, repeats: int) -> BenchResult:
    """The planner's pick, scored by the sweep's own samples, against the sweep's best. The regret
    is the part of the best score that the pick gives away.

    Plan afresh, then sweep every file of the width, layout, number of threads and of slots. Raises
    as ``make_plan``; ModelError when the sweep cannot run the pick.
    """
    files = plan_files(model, ModelOptions(), None)
    task = task_for(workload, _PROFILE).within(files.models)
    plan = make_plan(files.models, task)
    points = sorted(_sweep(files.models, task, repeats), key=lambda one: -one.samples.median)
    best, pick = points[0], next((one for one in points if one.is_pick_of(plan)), None)
    if pick is None:
        raise ModelError(f"the sweep does not hold the plan's choice: {plan}")
    given_away = 1 - pick.samples.median / best.samples.median
    figures = {
        "workload": workload,
        "profile": _PROFILE,
        "regret": given_away,
        "plan": plan.to_json(),
        "pick": pick.to_json(),
        "best": best.to_json(),
        "points": [point.to_json() for point in points],
    }
    lines = [f"{workload}, {_PROFILE}: regret {given_away:.1%}"]
    for point in points:
        marks = [name for name, one in (("pick", pick), ("best", best)) if one is point]
        lines.append(f"  {point}" + (f"  <- {', '.join(marks)}" if marks else ""))
    return BenchResult(figures, lines)


def _sweep(models: Sequence[ModelFile], task: PlanTask, repeats: int) -> list[_Point]:
    """Each round samples every setting in turn; what a whole round was slower than the others is
    divided out (``runtimes.planner.search``)."""
    found, _ = split_by_memory(candidates(models, task), task)
    for variants in (thread_variants, sampling_variants):
        found += [variant for candidate in found for variant in variants(candidate, task)]
    rounds: list[Round] = []
    with contextlib.ExitStack() as stack:
        trials = {}
        for candidate in found:
            most = candidate.slots_that_fit(task, task.row_counts[-1])
            counts = sorted({n for n in task.row_counts if n <= most} or {most})
            trial = stack.enter_context(load_trial(candidate, task, counts[-1]))
            trials[candidate] = (trial, counts)
        for _ in range(_ROUNDS * repeats):
            rounds.append(Round())
            for candidate, (trial, counts) in trials.items():
                rounds[-1].measure(trial, candidate, counts)
    rounds = without_drift(rounds)
    return [
        _Point(*contender, Samples(one.score(contender, task) for one in rounds))
        for contender in rounds[0].decode
    ]
