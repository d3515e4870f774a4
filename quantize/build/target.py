"""Making a file that keeps a target: types are chosen, the file is built, and for a bound of
divergence measured and repaired.

Three texts that share nothing: the table comes from the first; each try is measured on the second
and on the last, the one that all files are measured on, which has the verdict, with its standard
error. All that the next try takes from them is by how much one was off as a whole.
"""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quantize.allocate.solve import loss, size, solve
from quantize.build.measuring import divergence, know_original, read_measured, refer_to
from quantize.build.run import BuildJob, Measuring, Run, is_build
from quantize.build.target_plan import TargetPlan, described, make_again, plan_target, rebuild_line
from quantize.disk import human
from quantize.errors import MissedTargetError
from quantize.manifest import Allocation, Fidelity
from quantize.recipes import QualityTarget
from quantize.stages import Stage, are_texts, stage_key, versions

_AIMS = (0.97, 0.96, 0.93)  # of the bound, try by try
_NEAR = 0.93  # of the bound: a file below it wastes bytes
_TUNE = 2048  # scored tokens of the second text
_MEGABYTE = 1_000_000
_WASTED = 0.005  # of a bound of bytes: more of it is worth another try
_LEAST_KL = 1e-12  # where nothing is lost
_SPARE = 0.001  # of it: what cannot be told to the byte


@dataclass(frozen=True, slots=True)
class _Try:
    """A file with ``types`` by tensor, and what it was found to lose on both texts."""

    stage: Stage
    types: Mapping[str, str]
    tuned: Fidelity | None = None
    final: Fidelity | None = None
    over: float = 0.0  # by how much it is beyond the bound

    @property
    def bytes(self) -> int:
        return sum(found.bytes for found in self.stage.files.values())

    @property
    def verdict(self) -> float:
        """The divergence on the last text, with its standard error."""
        return self.final.kl_mean + self.final.kl_error if self.final is not None else 0.0

    @property
    def worst(self) -> float:
        """The larger one of both texts."""
        return max(self.verdict, self.tuned.kl_mean if self.tuned is not None else 0.0)


def make_target(run: Run, job: BuildJob, target: QualityTarget) -> Stage:
    """The stage of the file that keeps ``target``; its value is as `make_file`'s, with the
    ``allocation``.

    Raises MissedTargetError for a target that nothing can keep, or that no try has kept.
    """
    if found := run.stages.find("build", job.key, is_build):
        return found
    if listed := run.options.allocations.get(job.recipe.name):
        return make_again(run, job, listed)
    plan = plan_target(run, job.recipe, target)
    tries = _search(run, job, plan) if target.bound == "kl" else _within(run, job, plan)
    done = tries[-1]

    def keep(folder: Path) -> dict[str, Any]:
        made = _file(run, job, done)
        if made.is_dir():
            shutil.copytree(made, folder / made.name, copy_function=os.link)
        else:
            os.link(made, folder / made.name)
        kept = {**done.stage.value, "runs_here": True, "imatrix": plan.maker.used}
        return {**kept, "allocation": asdict(_allocation(run, job, plan, tries))}

    return run.stages.run("build", job.key, keep, valid=is_build)


def _within(run: Run, job: BuildJob, plan: TargetPlan) -> list[_Try]:
    """All tries; the last is the file of the least predicted divergence, or time, that is small
    enough. What a file has besides the tensors whose types are chosen is known once there is
    one."""
    least = sum(min(c.bytes for c in unit.choices) for unit in plan.table.units)
    room, tries = plan.limit - plan.besides, list[_Try]()
    chosen, taken, grows = 0.0, 0.0, 1.0
    for number in range(1, len(_AIMS) + 1):
        types = solve(plan.table.units, plan.cost(loss), size, room)
        if types is None:
            raise MissedTargetError(_too_small(run, job, plan, plan.limit - room + least))
        if tries and types == tries[-1].types:
            break
        made = _build(run, job, plan, types, number)
        before = chosen, taken
        chosen = plan.table.total(types).bytes
        taken = plan.maker.taken(_file(run, job, made), plan.target)
        left = plan.limit - taken
        if left < 0 and chosen <= least:
            raise MissedTargetError(_too_small(run, job, plan, taken))
        tries.append(replace(made, over=-left))
        if 0 <= left <= room - chosen + _WASTED * plan.limit:
            break
        if len(tries) > 1 and chosen != before[0]:  # a byte of weights may take more than one
            grows = max((taken - before[1]) / (chosen - before[0]), 1.0)
        room = max(chosen + left / grows - _SPARE * plan.limit, least)
    return _best_last(run, job, tries)


def _search(run: Run, job: BuildJob, plan: TargetPlan) -> list[_Try]:
    """All tries; the last is the smallest, or fastest, file that keeps the bound on the last text.
    Each asks for as much less, or more, as those before were off."""
    measuring, bound = run.plan, plan.target.value
    assert measuring is not None, "refused by `require_sense`"
    off, tries = _experience(run, job, measuring, bound), list[_Try]()
    for number, aim in enumerate(_AIMS, 1):
        asked = aim * bound / off
        types = solve(plan.table.units, plan.cost(size), loss, asked)
        if types is None or (tries and types == tries[-1].types):
            break
        made = _measured(run, job, plan, measuring, _build(run, job, plan, types, number))
        tries.append(made)
        run.progress.note(_told(made, job, plan))
        # Of what it was predicted to lose: the fastest file may not need all that it may lose.
        off = made.worst / max(plan.table.total(types).kl, _LEAST_KL)
        if _NEAR * bound <= made.verdict <= bound:
            break
    if not tries:
        least = sum(min(c.kl for c in unit.choices) for unit in plan.table.units)
        raise MissedTargetError(
            f"{job.recipe.name} cannot be kept: {run.base.name} is predicted to lose {least:.2g}"
            " nats with its tensors in the best types already"
        )
    return _best_last(run, job, tries)


def _experience(run: Run, job: BuildJob, measuring: Measuring, bound: float) -> float:
    """Measured over predicted, of the file in the folder that was built for a target and is nearest
    to ``bound``; 1 without one."""
    known = [
        (max(e.fidelity.kl_mean + e.fidelity.kl_error, e.allocation.tuned or 0.0), e.allocation)
        for e in run.space.manifest.files
        if e.format == job.recipe.format and e.source == run.fingerprint
        if e.measurement == measuring.key and e.fidelity and e.allocation
    ]
    found = [(lost, lost / of.predicted) for lost, of in known if lost > 0 and of.predicted > 0]
    return min(found, key=lambda one: abs(math.log(one[0] / bound)), default=(0.0, 1.0))[1]


def _best_last(run: Run, job: BuildJob, tries: Sequence[_Try]) -> list[_Try]:
    """Put the try last that keeps the bound and is nearest to it. Raises
    MissedTargetError if none does."""
    kept = [one for one in tries if one.over <= 0]
    if not kept:
        raise _missed(run, job, tries)
    last = max(kept, key=lambda one: one.over)
    return [*(one for one in tries if one is not last), last]


def _build(
    run: Run, job: BuildJob, plan: TargetPlan, types: Mapping[str, str], number: int
) -> _Try:
    line = rebuild_line(run.options, run.base, job.recipe)
    inputs = {"from": plan.maker.key, "types": dict(types), "name": job.recipe.name, "line": line}
    key = stage_key("try", {**inputs, "tools": versions([job.recipe.format])})

    def make(folder: Path) -> dict[str, Any]:
        metadata = described(plan.target.name, types, line)
        made = plan.maker.make(run, job.recipe, plan.table, types, metadata, folder)
        return dict(zip(("notes", "route"), made, strict=True))

    text = f"quantizing to {job.recipe.name}, try {number}"
    return _Try(run.stages.run("try", key, make, text, valid=_is_try), types)


def _is_try(stage: Stage) -> bool:
    value = stage.value
    told = are_texts(value["notes"]) and isinstance(value["route"], str)
    return bool(stage.files) and told


def _file(run: Run, job: BuildJob, made: _Try) -> Path:
    return made.stage.folder / job.recipe.output_name(run.base.name)


def _measured(run: Run, job: BuildJob, plan: TargetPlan, measuring: Measuring, made: _Try) -> _Try:
    """With its divergences on both texts that had no part in the table."""
    path = _file(run, job, made)
    sha256 = {name: found.sha256 for name, found in made.stage.files.items()}
    known = read_measured(plan.tune, _TUNE)
    tuned = divergence(run, job.recipe, path, sha256, refer_to(run, plan.tune, known), known)
    original = know_original(run, measuring)
    final = divergence(run, job.recipe, path, sha256, original, measuring.text)
    made = replace(made, tuned=tuned, final=final)
    return replace(made, over=made.verdict - plan.target.value)


def _allocation(run: Run, job: BuildJob, plan: TargetPlan, tries: Sequence[_Try]) -> Allocation:
    done = tries[-1]
    units, total = plan.table.units, plan.table.total(done.types)
    larger = solve(units, loss, size, total.bytes + _MEGABYTE)
    return Allocation(
        dict(done.types),
        total.kl,
        len(tries),
        tuned=done.tuned.kl_mean if done.tuned is not None else None,
        next_mb=plan.table.total(larger).kl if larger else None,
        step_s=plan.times.step(plan.table, done.types) if plan.times else None,
        rows=plan.target.rows,
        rebuild=rebuild_line(run.options, run.base, job.recipe),
    )


def _told(made: _Try, job: BuildJob, plan: TargetPlan) -> str:
    parts = [human(made.bytes), f"predicted {plan.table.total(made.types).kl:.4g}"]
    if made.tuned is not None and made.final is not None:
        parts.append(f"{made.tuned.kl_mean:.4g} on the text for tries")
        parts.append(f"{made.final.kl_mean:.4g} +- {made.final.kl_error:.2g} on the last")
    return f"{job.recipe.name}, a bound of {plan.target.value:g}: {', '.join(parts)}"


def _too_small(run: Run, job: BuildJob, plan: TargetPlan, least: float) -> str:
    name, target = run.base.name, plan.target
    if target.bound == "bits":
        why = f"{name} takes at least {least * 8 / plan.maker.weights:.3g} bits a weight"
    elif target.bound == "memory":
        why = f"{name} takes at least {human(int(least))} with {target.context:,} tokens of context"
    else:
        why = f"the smallest file of {name} has about {human(int(least))}"
    return f"{job.recipe.name} cannot be kept: {why}"


def _missed(run: Run, job: BuildJob, tries: Sequence[_Try]) -> MissedTargetError:
    """No file kept the bound: the nearest is put beside the others, unlisted."""
    nearest = min(tries, key=lambda one: one.over)
    made = _file(run, job, nearest)
    suffix = ".gguf" if job.recipe.format == "gguf" else ""
    aside = f"{made.name.removesuffix(suffix)}.missed{suffix}"
    run.space.move_out(made, aside)
    if nearest.final is None:
        found = f"takes {human(int(nearest.over))} too much"
    else:
        found = f"loses {nearest.verdict:.4g} nats"
    return MissedTargetError(
        f"{job.recipe.name} is not kept: the nearest of {len(tries)} tries {found}."
        f" Nothing was published for it; that file is {run.space.out / aside}, which nothing lists:"
        " delete it when you have seen enough of it"
    )
