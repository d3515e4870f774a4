"""Making a file that keeps a target: types are chosen, the file is built, and for a bound of
divergence measured and repaired.

Three texts that share nothing: the table comes from the first; each try is measured on the second
and on the last, the one that all files are measured on, which has the verdict, with its standard
error. All that the next try takes from them is by how much one was off as a whole.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quantize.allocate.solve import loss, size, solve
from quantize.build.measuring import divergence, know_original, read_measured, refer_to
from quantize.build.run import Job, Measuring, Run
from quantize.build.target_plan import TargetPlan, plan_target
from quantize.disk import human
from quantize.errors import MissedTargetError
from quantize.gguf.quantize import LONGEST, quantize_gguf
from quantize.manifest import Allocation, Fidelity
from quantize.recipes.target import Target
from quantize.stages.stages import Stage, stage_key, versions

_AIMS = (0.97, 0.96, 0.93)  # of the bound, try by try
_NEAR = 0.93  # of the bound: a file below it wastes bytes
_TUNE = 2048  # scored tokens of the second text
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class _Try:
    """A file with ``types`` by tensor, and what it was found to lose on both texts."""

    stage: Stage
    types: Mapping[str, str]
    tuned: Fidelity | None = None
    final: Fidelity | None = None

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


def make_target(run: Run, job: Job, target: Target) -> Stage:
    """The stage of the file that keeps ``target``; its value is as `make_file`'s, with the
    ``allocation``.

    Raises MissedTargetError for a target that nothing can keep, or that no try has kept.
    """
    if found := run.stages.find("build", job.key):
        return found
    plan = plan_target(run, target)
    tries = [_within(run, job, plan)] if target.bound != "kl" else _search(run, job, plan)
    done = tries[-1]

    def keep(folder: Path) -> dict[str, Any]:
        made = _file(run, job, done)
        (folder / made.name).hardlink_to(made)
        notes = [*plan.export.notes, *done.stage.value]
        kept = {"notes": notes, "route": "llama.cpp", "runs_here": True, "imatrix": plan.used}
        return {**kept, "allocation": asdict(_allocation(plan, done, len(tries)))}

    return run.stages.run("build", job.key, keep)


def _within(run: Run, job: Job, plan: TargetPlan) -> _Try:
    """The file of the least predicted divergence, or time, that is small enough."""
    types = solve(plan.table.units, plan.cost(loss), size, plan.room)
    if types is None:
        least = sum(min(c.bytes for c in unit.choices) for unit in plan.table.units)
        raise MissedTargetError(
            f"{plan.target.name} cannot be kept: the smallest file of {run.base.name} has about"
            f" {human(plan.overhead + least)}"
        )
    return _build(run, job, plan, types, f"quantizing to {job.recipe.name}")


def _search(run: Run, job: Job, plan: TargetPlan) -> list[_Try]:
    """All tries; the last is the smallest, or fastest, file that keeps the bound on the last text.
    Each asks for as much less, or more, as those before were off."""
    measuring, bound = run.plan, plan.target.value
    assert measuring is not None, "refused by `require_sense`"
    off, tries = 1.0, list[_Try]()  # measured over predicted
    for number, aim in enumerate(_AIMS, 1):
        asked = aim * bound / off
        types = solve(plan.table.units, plan.cost(size), loss, asked)
        if types is None:
            break
        text = f"quantizing to {job.recipe.name}, try {number}"
        made = _measured(run, job, plan, measuring, _build(run, job, plan, types, text))
        tries.append(made)
        run.progress.note(_told(made, plan))
        off = made.worst / asked
        if _NEAR * bound <= made.verdict <= bound:
            break
    if not tries:
        least = sum(min(c.kl for c in unit.choices) for unit in plan.table.units)
        raise MissedTargetError(
            f"{plan.target.name} cannot be kept: {run.base.name} in half precision is predicted to"
            f" lose {least:.2g} nats already"
        )
    kept = [one for one in tries if one.verdict <= bound]
    if not kept:
        raise _missed(run, job, plan, tries)
    # Of those that keep it the nearest to the bound has the most of what was asked for.
    last = max(kept, key=lambda one: one.verdict)
    return [*(one for one in tries if one is not last), last]


def _build(run: Run, job: Job, plan: TargetPlan, types: Mapping[str, str], text: str) -> _Try:
    own = {f"^{re.escape(name)}$": kind for name, kind in types.items()}
    inputs = {"export": plan.export.sha256, "types": dict(types), "matrix": plan.used}
    key = stage_key("try", {**inputs, "name": job.recipe.name, "tools": versions(["gguf"])})

    def make(folder: Path) -> list[str]:
        return quantize_gguf(
            plan.export.path,
            folder / job.recipe.output_name(run.base.name),
            job.recipe,
            run.space.root,
            imatrix=plan.matrix,
            overrides={**run.options.overrides, **own},
            progress=run.progress,
            metadata=_metadata(plan.target, types),
        )

    return _Try(run.stages.run("try", key, make, text), types)


def _file(run: Run, job: Job, made: _Try) -> Path:
    return made.stage.folder / job.recipe.output_name(run.base.name)


def _measured(run: Run, job: Job, plan: TargetPlan, measuring: Measuring, made: _Try) -> _Try:
    """With its divergences on both texts that had no part in the table."""
    path = _file(run, job, made)
    sha256 = {name: found.sha256 for name, found in made.stage.files.items()}
    known = read_measured(plan.tune, _TUNE)
    tuned = divergence(run, job.recipe, path, sha256, refer_to(run, plan.tune, known), known)
    original = know_original(run, measuring)
    final = divergence(run, job.recipe, path, sha256, original, measuring.text)
    return replace(made, tuned=tuned, final=final)


def _allocation(plan: TargetPlan, done: _Try, tries: int) -> Allocation:
    units, total = plan.table.units, plan.table.total(done.types)
    larger = solve(units, loss, size, total.bytes + _MEGABYTE)
    return Allocation(
        dict(done.types),
        total.kl,
        tries,
        tuned=done.tuned.kl_mean if done.tuned is not None else None,
        next_mb=plan.table.total(larger).kl if larger else None,
        step_s=plan.times.step(plan.table, done.types) if plan.times else None,
        rows=plan.target.rows,
    )


def _metadata(target: Target, types: Mapping[str, str]) -> dict[str, str]:
    """What the file says of itself: the target, and the tensors of every type."""
    tensors: dict[str, list[str]] = {}
    for name, kind in types.items():
        tensors.setdefault(kind, []).append(name.removeprefix("blk.").removesuffix(".weight"))
    found = {"ingot.target": target.name}
    for kind, names in sorted(tensors.items()):
        pieces = textwrap.wrap(" ".join(sorted(names)), LONGEST)
        found |= {f"ingot.allocation.{kind}.{i}": piece for i, piece in enumerate(pieces)}
    return found


def _told(made: _Try, plan: TargetPlan) -> str:
    parts = [human(made.bytes), f"predicted {plan.table.total(made.types).kl:.4g}"]
    if made.tuned is not None and made.final is not None:
        parts.append(f"{made.tuned.kl_mean:.4g} on the text for tries")
        parts.append(f"{made.final.kl_mean:.4g} +- {made.final.kl_error:.2g} on the last")
    return f"{plan.target.name}, a bound of {plan.target.value:g}: {', '.join(parts)}"


def _missed(run: Run, job: Job, plan: TargetPlan, tries: Sequence[_Try]) -> MissedTargetError:
    """No file kept the bound: the nearest is put beside the others, unlisted."""
    nearest = min(tries, key=lambda one: one.verdict)
    made = _file(run, job, nearest)
    aside = made.with_suffix(".missed.gguf")
    run.space.move_out(made, aside.name)
    return MissedTargetError(
        f"{plan.target.name} is not kept: the nearest of {len(tries)} tries loses"
        f" {nearest.verdict:.4g} nats. Nothing was published for it; that file is"
        f" {run.space.out / aside.name}"
    )
