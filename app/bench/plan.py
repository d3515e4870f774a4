"""How far the planner's pick is from the best of an exhaustive sweep."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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
from runtimes.planner.race import Arm, Lap, without_drift
from runtimes.planner.search import PROMPT, make_plan
from runtimes.planner.trial import Trial, trial_context

# Samples are short, so that all settings of a lap meet the same machine; medians want many.
_LAPS = 4  # a repeat
_PROFILE: Profile = "balanced"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One setting of the sweep; ``score`` as ``runtimes.planner.choose.score`` defines it."""

    candidate: Alternative
    slots: int
    score: float
    samples: tuple[float, ...]


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
    laps: list[Lap] = []
    with contextlib.ExitStack() as stack:
        trials = {}
        for candidate in found:
            most = candidate.slots_that_fit(task, task.row_counts[-1])
            counts = sorted({n for n in task.row_counts if n <= most} or {most})
            settings = candidate.settings(counts[-1], trial_context(PROMPT))
            trials[candidate] = (stack.enter_context(Trial(candidate.model.path, settings)), counts)
        for _ in range(_LAPS * repeats):
            lap = Lap()
            laps.append(lap)
            for candidate, (trial, counts) in trials.items():
                for rows in counts:
                    # One prompt's prefill does not depend on the rows that decode afterwards.
                    sample = trial.sample(PROMPT if rows == counts[0] else 0, rows)
                    if sample.prefill_tps is not None:
                        lap.prefill[candidate] = sample.prefill_tps
                    lap.decode[candidate, rows] = sample.decode_tps
    laps = without_drift(laps)
    points = {arm: _point(arm, laps, task) for arm in laps[0].decode}
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
        "pick": asdict(pick),
        "best": asdict(ranked[0]),
        "points": [asdict(point) for point in points.values()],
    }
    lines = [f"{workload}, {_PROFILE}: regret {regret:.1%}"]
    for point in ranked:
        marks = [name for name, p in (("pick", pick), ("best", ranked[0])) if p is point]
        lines.append(f"  {_title(point)}" + (f"  <- {', '.join(marks)}" if marks else ""))
    return Result(figures, lines)


def _point(arm: Arm, laps: Sequence[Lap], task: Task) -> SweepPoint:
    each = tuple(lap.score(arm, task) for lap in laps)
    return SweepPoint(arm[0].describe(), arm[1], statistics.median(each), each)


def _is_pick(plan: Plan, candidate: Candidate, rows: int) -> bool:
    return (
        str(candidate.model.path) == plan.path
        and rows == plan.slots
        and candidate.threads == plan.threads
        and candidate.unified_kv == plan.unified_kv
        and candidate.kv_type == plan.kv_type
        and candidate.gpu_layers == plan.gpu_layers
        and candidate.device_sampling == plan.device_sampling
    )


def _title(point: SweepPoint) -> str:
    about = point.candidate
    layout = " unified" if about.unified_kv else ""
    layout += " device sampling" if about.device_sampling else ""
    return (
        f"{point.score:10.4g}  {about.file}{layout}, {point.slots} slots, {about.threads} threads"
    )
