"""Estimates against what is measured: memory of a process, and the planner's choice among all
settings of an exhaustive sweep."""

import contextlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from app.bench.frame import BenchResult, Figures, Samples
from app.bench.options import BenchOptions
from app.figures import aligned
from app.models.planning import plan_files, task_for
from app.options import ModelOptions
from runtimes.backend import MemoryEstimate
from runtimes.errors import ModelError, RequestError
from runtimes.machine.linechild import LineChild
from runtimes.models.memory import estimate
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of, read_model
from runtimes.planner.candidates import (
    Candidate,
    PlanTask,
    candidates,
    split_by_memory,
    variants,
)
from runtimes.planner.plan import WORKLOADS, Plan, PlanWorkload, Profile
from runtimes.planner.search import Round, load_trial, make_plan, measure, scores, without_drift
from runtimes.settings import RunnerSettings

_MIB = 2**20

# Settings unless others are asked for: one short slot, few long ones, many of a usual length.
SETTINGS = (
    RunnerSettings(slots=1, context=512, gpu_layers=0),
    RunnerSettings(slots=4, context=4096, gpu_layers=0),
    RunnerSettings(slots=16, context=1024, gpu_layers=0),
    RunnerSettings(slots=4, context=512, gpu_layers=0, unified_kv=True),
    RunnerSettings(slots=4, context=4096, gpu_layers=0, flash_attention="off"),
    RunnerSettings(slots=16, context=1024, gpu_layers=0, kv_type="q8_0"),
    RunnerSettings(slots=16, context=1024, gpu_layers=0, kv_type="q4_0"),
)
# Settings that programs are told.
_TOLD = ("slots", "context", "batch", "kv_type", "unified_kv", "flash_attention")
_HEAD = ("file", "slots x context", "kv", "weights", "kv", "compute", "other", "total")


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One file at one setting, bytes. ``resident`` also has pages that steps no longer read."""

    settings: RunnerSettings
    estimate: MemoryEstimate
    measured: int
    resident: int

    @property
    def error(self) -> float:
        """Error of the estimate as a part of what was measured; above 0 when it is too high."""
        return self.estimate.total / self.measured - 1


def memory(path: Path, _options: BenchOptions) -> BenchResult:
    """One file at several settings, as ``memory_check``; the table is in MiB."""
    figures = []
    lines = [[*_HEAD, "measured", "off by", "resident"]]
    for row in memory_check(path):
        asked, parts = row.settings, row.estimate
        figures.append(
            {
                "file": path.name,
                **{name: getattr(asked, name) for name in _TOLD},
                "estimate": parts.to_json(),
                "measured": row.measured,
                "resident": row.resident,
                "error": row.error,
            }
        )
        unified = " unified" if asked.unified_kv else ""
        scores = " with scores" if asked.flash_attention == "off" else ""
        words = (path.name, f"{asked.slots} x {asked.context}", asked.kv_type + unified + scores)
        sizes = (parts.weights, parts.kv, parts.compute, parts.overhead, parts.total, row.measured)
        *numbers, resident = (f"{size / _MIB:,.1f}" for size in (*sizes, row.resident))
        lines.append([*words, *numbers, f"{row.error:+.1%}", resident])
    return BenchResult({"settings": figures}, aligned(lines, left=3))


def memory_check(
    path: Path, settings: Sequence[RunnerSettings] = SETTINGS, *, timeout_s: float = 600
) -> list[MemoryRow]:
    """Load the file at each setting, fill it, and compare; a process for each.

    Settings that do not matter to an ONNX graph (type and layout of the cache, kernel of attention)
    are left out for one.
    Raises RequestError on systems without /proc, IngotError when a process fails.
    """
    if not Path("/proc/self/smaps").exists():
        raise RequestError("memory is measured through /proc, which this system lacks")
    model = read_model(path)
    rows = []
    for asked in settings:
        usual = replace(asked, kv_type="f16", unified_kv=False, flash_attention="auto")
        if "kv_type" not in backend_of(model).knows and asked != usual:
            continue
        words = (path, json.dumps(asdict(asked)))
        with LineChild("runtimes.planner.memory_child", *words, name=f"measuring {path}") as child:
            found = child.answer(timeout_s)
        rows.append(MemoryRow(asked, estimate(model, asked), found["used"], found["resident"]))
    return rows


# Samples are short, so that all settings of a round meet the same machine; medians want many.
_ROUNDS = 4  # a repeat
_PROFILE: Profile = "balanced"


@dataclass(frozen=True, slots=True)
class _Point:
    """One setting of the sweep; scores as ``runtimes.planner.candidates.score`` defines them."""

    candidate: Candidate
    slots: int
    samples: Samples

    def to_json(self) -> Figures:
        """Object for programs."""
        about = self.candidate.describe().to_json()
        score = self.samples.median
        return {"candidate": about, "slots": self.slots, "score": score, "samples": self.samples}

    def is_pick_of(self, plan: Plan) -> bool:
        """True for the setting that the planner chose."""
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
            rounds.append({})
            for candidate, (trial, counts) in trials.items():
                rounds[-1] |= measure(trial, candidate, counts)
    rounds = without_drift(rounds)
    return [_Point(*who, Samples(scores(who, rounds, task))) for who in rounds[0]]
