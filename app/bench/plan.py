"""How far the planner's pick is from the best of an exhaustive sweep."""

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, Result
from app.models.planning import plan_files, task_for
from app.options import ModelOptions
from runtimes.errors import ModelError
from runtimes.planner.candidates import (
    Candidate,
    Task,
    candidates,
    sampling_variants,
    split_by_memory,
    thread_variants,
)
from runtimes.planner.plan import WORKLOADS, Alternative, Plan, PlanWorkload, Profile
from runtimes.planner.race import Contender, Round, without_drift
from runtimes.planner.search import make_plan
from runtimes.planner.trial import CONTEXT, Trial

# Samples are short, so that all settings of a round meet the same machine; medians want many.
_ROUNDS = 4  # a repeat
_PROFILE: Profile = "balanced"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One setting of the sweep; ``score`` as ``runtimes.planner.choose.score`` defines it."""

    candidate: Alternative
    slots: int
    score: float
    samples: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "candidate": self.candidate.to_json()}


def plan(folder: Path, options: BenchOptions) -> Result:
    """The planner against a sweep, for each workload."""
    figures, lines = [], []
    for workload in WORKLOADS:
        result = _regret(folder, workload, options.repeats)
        figures.append(result.figures)
        lines += result.lines
    return Result({"workloads": figures}, lines)


def _regret(folder: Path, workload: PlanWorkload, repeats: int) -> Result:
    """The planner's pick, scored by the sweep's own samples, against the sweep's best. The regret
    is the part of the best score that the pick gives away.

    Plan afresh, then sweep every file of the width, layout, number of threads and of slots.

    Each round samples every setting in turn, and what a whole round was slower than the others is
    divided out (``runtimes.planner.race``). Raises as ``make_plan``; ModelError when the sweep
    cannot run the pick.
    """
    files = plan_files(str(folder), ModelOptions(), None)
    task = task_for(workload, _PROFILE)
    plan = make_plan(files.models, task)
    found, _ = split_by_memory(candidates(files.models, task), task)
    for variants in (thread_variants, sampling_variants):
        found += [variant for candidate in found for variant in variants(candidate, task)]
    rounds: list[Round] = []
    with contextlib.ExitStack() as stack:
        trials = {}
        for candidate in found:
            most = candidate.slots_that_fit(task, task.row_counts[-1])
            counts = sorted({n for n in task.row_counts if n <= most} or {most})
            settings = replace(candidate.settings, slots=counts[-1], context=CONTEXT)
            trials[candidate] = (stack.enter_context(Trial(candidate.model.path, settings)), counts)
        for _ in range(_ROUNDS * repeats):
            rounds.append(Round())
            for candidate, (trial, counts) in trials.items():
                rounds[-1].measure(trial, candidate, counts)
    rounds = without_drift(rounds)
    points = {who: _point(who, rounds, task) for who in rounds[0].decode}
    picked = [p for (c, rows), p in points.items() if _is_pick(plan, c, rows)]
    if not picked:
        raise ModelError(f"the sweep does not hold the plan's choice: {plan}")
    pick, ranked = picked[0], sorted(points.values(), key=lambda point: -point.score)
    regret = 1 - pick.score / ranked[0].score
    figures = {
        "workload": workload,
        "profile": _PROFILE,
        "regret": round(regret, 4),
        "plan": plan.to_json(),
        "pick": pick.to_json(),
        "best": ranked[0].to_json(),
        "points": [point.to_json() for point in points.values()],
    }
    lines = [f"{workload}, {_PROFILE}: regret {regret:.1%}"]
    for point in ranked:
        marks = [name for name, p in (("pick", pick), ("best", ranked[0])) if p is point]
        lines.append(f"  {_title(point)}" + (f"  <- {', '.join(marks)}" if marks else ""))
    return Result(figures, lines)


def _point(contender: Contender, rounds: Sequence[Round], task: Task) -> SweepPoint:
    candidate, rows = contender
    each = tuple(one.score(contender, task) for one in rounds)
    return SweepPoint(candidate.describe(), rows, statistics.median(each), each)


def _is_pick(plan: Plan, candidate: Candidate, rows: int) -> bool:
    chosen = plan.settings
    sized = replace(candidate.settings, slots=rows, context=chosen.context, batch=chosen.batch)
    return str(candidate.model.path) == plan.path and sized == chosen


def _title(point: SweepPoint) -> str:
    about = point.candidate
    layout = " unified" if about.settings.unified_kv else ""
    layout += " device sampling" if about.settings.device_sampling else ""
    return (
        f"{point.score:10.4g}  {about.file}{layout}, {point.slots} slots, "
        f"{about.settings.threads} threads"
    )
