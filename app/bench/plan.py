"""How far the planner's pick is from the best of an exhaustive sweep."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.models.planning import Bits, plan_files, task_for
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
from runtimes.planner.plan import Alternative, Plan, PlanWorkload, Profile
from runtimes.planner.race import Arm, Lap, without_drift
from runtimes.planner.search import PROMPT, make_plan
from runtimes.planner.trial import Trial, trial_context

# Samples are short, so that all settings of a lap meet the same machine; medians want many.
_LAPS = 4  # a repeat


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One setting of the sweep; ``score`` as ``runtimes.planner.choose.score`` defines it."""

    candidate: Alternative
    slots: int
    score: float
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlanRegret:
    """The planner's pick, scored by the sweep's own samples, against the sweep's best.

    ``regret`` is the part of the best score that the pick gives away, 0 when it is the best.
    """

    workload: PlanWorkload
    profile: Profile
    plan: Plan
    pick: SweepPoint
    best: SweepPoint
    points: tuple[SweepPoint, ...]

    @property
    def regret(self) -> float:
        """At least 0."""
        return 1 - self.pick.score / self.best.score

    def to_json(self) -> dict[str, Any]:
        """Figures for programs."""
        return {
            "workload": self.workload,
            "profile": self.profile,
            "regret": round(self.regret, 4),
            "plan": self.plan.to_json(),
            "pick": asdict(self.pick),
            "best": asdict(self.best),
            "points": [asdict(point) for point in self.points],
        }

    def lines(self) -> list[str]:
        """For people: the points, best first."""
        head = f"{self.workload}, {self.profile}: regret {self.regret:.1%}"
        ranked = sorted(self.points, key=lambda point: -point.score)
        return [head, *(f"  {_title(p)}{_marks(p, self)}" for p in ranked)]


def plan_regret(
    folder: Path,
    workload: PlanWorkload,
    *,
    profile: Profile = "balanced",
    bits: Bits | None = None,
    repeats: int = 5,
) -> PlanRegret:
    """Plan afresh, then sweep every file of the width, layout, number of threads and of slots.

    Each round samples every setting in turn, and what a whole round was slower than the others is
    divided out (``runtimes.planner.race``). Raises as ``make_plan``; ModelError when the sweep
    cannot run the pick.
    """
    files = plan_files(str(folder), ModelOptions(), bits)
    task = task_for(workload, profile)
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
    everything = tuple(points.values())
    best = max(everything, key=lambda point: point.score)
    return PlanRegret(workload, profile, plan, picked[0], best, everything)


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


def _marks(point: SweepPoint, result: PlanRegret) -> str:
    marks = [name for name, p in (("pick", result.pick), ("best", result.best)) if p is point]
    return f"  <- {', '.join(marks)}" if marks else ""
