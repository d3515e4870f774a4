"""Making a file that keeps a target: types are chosen, the file is built, and for a bound of
divergence measured and repaired; or a listed file exactly again, without a search.

Three texts that share nothing: the table comes from the first; each try is measured on the second
and on the last, the one that all files are measured on, which has the verdict, with its standard
error. All that the next try takes from them is by how much one was off as a whole.
"""

import math
import os
import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quantize.allocate.measure import calibration_text, sensitivities, split_texts
from quantize.allocate.solve import (
    Figure,
    TypeChoice,
    Types,
    TypeTable,
    Unit,
    choose_cache,
    loss,
    mixes,
    size,
    solve,
)
from quantize.allocate.speed import StepTimes, step_times
from quantize.build.measuring import (
    cache_losses,
    divergence,
    know_original,
    read_measured,
    refer_deep,
    refer_to,
)
from quantize.build.run import BuildJob, Measuring, Run, is_build
from quantize.build.target_files import GgufMaker, Maker, gguf_maker, onnx_maker
from quantize.disk import human
from quantize.errors import MissedTargetError, SourceError, UsageError
from quantize.gguf.quantize import LONGEST
from quantize.hub.client import parse_hub_name
from quantize.manifest import NAME, Allocation, FileEntry, load_manifest
from quantize.options import Options
from quantize.recipes import ONNX, W8A8, QualityTarget, Recipe
from quantize.source import SourceModel
from quantize.stages import JsonObject, Stage, stage_key, versions
from runtimes.models.gguf import CACHE_KEY
from runtimes.models.registry import read_model
from runtimes.settings import KvType


@dataclass(frozen=True)
class TargetPlan:
    """The search for the file of ``recipe``, which keeps ``target``. Tries are measured on
    ``tune``; ``times`` are of a target that wants speed."""

    run: Run
    recipe: Recipe
    target: QualityTarget
    table: TypeTable
    maker: Maker
    tune: Path
    times: StepTimes | None

    def cost(self, otherwise: Figure) -> Figure:
        """Figure to be minimized by the choice: time where speed is wanted."""
        return self.times.of if self.times else otherwise

    @property
    def limit(self) -> float:
        """The bound in bytes."""
        value = self.target.value
        return value * self.maker.weights / 8 if self.target.bound == "bits" else value

    @property
    def line(self) -> str:
        """The command that builds the file again."""
        return rebuild_line(self.run.options, self.run.base, self.recipe)


def maker_for(run: Run, recipe: Recipe) -> tuple[Maker, Path, Path]:
    """Maker of files of the recipe's format, and the texts for it and for tries. Raises
    UsageError for texts that share a passage."""
    given, final = calibration_text(run.options, run.base), run.options.measure.text
    calibrate, tune = (run.space.work / name for name in ("calibrate.txt", "tune.txt"))
    for path, part in zip((calibrate, tune), split_texts(given, final), strict=True):
        path.write_text(part, encoding="utf-8")
    make = onnx_maker if recipe.format == ONNX else gguf_maker
    return make(run, calibrate), calibrate, tune


def chosen_table(run: Run, recipe: Recipe, maker: Maker, text: Path) -> TypeTable:
    """Table of the tensors whose types ``maker`` can choose. What is not known yet is measured over
    ``text``, in one pass for both formats. Raises ModelError for a model whose weights are not
    understood."""
    raters, wanted = [maker.rater], run.options.recipes
    if recipe.format != ONNX and any(r.target and r.format == ONNX for r in wanted):
        raters.append(onnx_maker(run, text).rater)
    return maker.chosen(sensitivities(run.source, raters, text, run.space.work, run.progress))


def plan_target(run: Run, recipe: Recipe, target: QualityTarget) -> TargetPlan:
    """Measure what is not known yet. Raises what `maker_for` and `chosen_table` raise."""
    maker, calibrate, tune = maker_for(run, recipe)
    table, times = chosen_table(run, recipe, maker, calibrate), None
    if target.rows:
        timed, where = maker.timed(recipe, table), (run.space.work, run.progress)
        times = step_times(table, target.rows, timed, *where)
    else:  # it is there for its speed
        table = _with(table, lambda _unit, choice: choice.kind != W8A8)
    taken = maker.besides(table, QualityTarget("bytes", 0.0, ""))
    front = tuple((taken + mix.bytes, mix.kl) for mix in mixes(table.units))
    run.space.describe(**{"onnx_mixes" if recipe.format == ONNX else "mixes": front})

    def asked(unit: Unit, choice: TypeChoice) -> bool:
        kinds = (k for pattern, k in run.options.overrides.items() if re.search(pattern, unit.name))
        return choice.kind == next(kinds, choice.kind)

    if recipe.format != ONNX:
        table = _with(table, asked)
    if target.bound == "memory" and isinstance(maker, GgufMaker):
        target = _with_cache(run, maker, table, tune, target)
    return TargetPlan(run, recipe, target, table, maker, tune, times)


def _with_cache(
    run: Run, maker: GgufMaker, table: TypeTable, text: Path, target: QualityTarget
) -> QualityTarget:
    """The target with the types of keys and values that leave the best weights the most room for
    what they lose themselves."""
    model = read_model(maker.export.path)
    if not (model.packs_kv and model.kv_elements + model.window_elements):
        return target
    base = refer_deep(run, maker.export, text, target.context)
    losses = cache_losses(run, maker.export, base)

    def room(kind: KvType) -> float:
        return target.value - maker.besides(table, replace(target, cache=kind))

    kind = choose_cache(mixes(table.units), room, losses)
    saved = human(room(kind) - room("f16"))
    why = f"{saved} less at {target.context:,} tokens" if kind != "f16" else "the best here"
    run.progress.note(
        f"keys and values of {kind}: {why}; what they lose was measured behind {losses.tokens:,}"
    )
    return replace(target, cache=kind)


def _with(table: TypeTable, wanted: Callable[[Unit, TypeChoice], bool]) -> TypeTable:
    """The table with these choices only, for each tensor that has any of them."""
    kept = ((unit, tuple(c for c in unit.choices if wanted(unit, c))) for unit in table.units)
    units = (replace(unit, choices=choices or unit.choices) for unit, choices in kept)
    return replace(table, units=tuple(units))


def find_listed(text: str) -> FileEntry:
    """The file of a target that ``text``, MANIFEST#NAME, means. Raises UsageError, and ModelError
    for a manifest that cannot be read."""
    where, _, name = text.rpartition("#")
    path = Path(where)
    if not where or (path.name != NAME and not path.is_dir()):
        raise UsageError(
            f"--allocation takes the manifest that lists a file, and its recipe, such as"
            f" pebble-built/{NAME}#kl0.02, not {text!r}"
        )
    manifest = load_manifest(path if path.is_dir() else path.parent)
    listed = {entry.recipe: entry for entry in manifest.files if entry.allocation}
    if name not in listed:
        there = f"has {', '.join(listed)}" if listed else "lists no file of a target"
        raise UsageError(f"{where} has no allocation of {name}: it {there}")
    return listed[name]


def rebuild_line(options: Options, source: SourceModel, recipe: Recipe) -> str:
    """The command that builds the file of ``recipe``, a target's, exactly again. It goes with the
    file to others, so that a folder or a text is called by its name, without its path."""
    given, hub = options.source, parse_hub_name(options.source.model)
    model = hub.repo if source.revision and hub else source.name
    words = ["quantize", f"{model}@{source.revision}" if source.revision else model]
    if given.lora:
        words += ["--lora", given.lora if parse_hub_name(given.lora) else Path(given.lora).name]
    text = calibration_text(options, source)
    if text == options.imatrix:
        words += ["--imatrix", text.name]
    if options.gptq:
        words.append("--gptq")
    for pattern, kind in options.overrides.items():
        words += ["--override", f"{pattern}={kind}"]
    if given.allow_pickle:
        words.append("--allow-pickle")
    if given.trust_remote_code:
        words.append("--trust-remote-code")
    return shlex.join([*words, "--allocation", f"{NAME}#{recipe.name}"])


def described(target: str, types: Types, line: str, cache: KvType = "f16") -> dict[str, str]:
    """Metadata of a file: its ``target``, the tensors of every type, the ``line`` that builds it
    again, and the type of keys and values that it was chosen with."""
    tensors: dict[str, list[str]] = {}
    for name, kind in types.items():
        tensors.setdefault(kind, []).append(name.removeprefix("blk.").removesuffix(".weight"))
    found = {"ingot.target": target}
    if cache != "f16":
        found[CACHE_KEY] = cache
    for kind, names in sorted(tensors.items()):
        pieces = textwrap.wrap(" ".join(sorted(names)), LONGEST)
        found |= {f"ingot.allocation.{kind}.{i}": piece for i, piece in enumerate(pieces)}
    size = LONGEST if line.isascii() else LONGEST // 4  # bytes of a character, at most
    pieces = [line[at : at + size] for at in range(0, len(line), size)]
    return found | {f"ingot.rebuild.{i}": piece for i, piece in enumerate(pieces)}


def make_again(run: Run, job: BuildJob, listed: FileEntry) -> Stage:
    """The stage of the file that was ``listed``; its value is as `make_target`'s. Raises
    SourceError if it was built from other weights."""
    allocation, recipe = listed.allocation, job.recipe
    assert allocation is not None, "see `find_listed`"
    assert recipe.target is not None
    if listed.source.hash != run.fingerprint.hash:
        raise SourceError(
            f"{recipe.name} was built from other files of {listed.source.name} than those in"
            f" {run.base.folder}: types that were chosen for one model keep no target for another"
        )
    maker, calibrate, _ = maker_for(run, recipe)
    table = TypeTable((), 0, "")
    if recipe.format == ONNX:  # rounded by what the table says of input channels
        table = chosen_table(run, recipe, maker, calibrate)
    told = allocation.types, allocation.rebuild, allocation.cache
    metadata = described(recipe.target.name, *told)

    def make(folder: Path) -> JsonObject:
        made = maker.make(recipe, table, allocation.types, metadata, folder)
        return {**made, "allocation": asdict(allocation)}

    text = f"quantizing to {recipe.name} as listed"
    stage = run.stages.run("build", job.key, make, text, valid=is_build)
    run.progress.note(_compared(listed, stage, recipe, maker.used))
    return stage


def _compared(listed: FileEntry, stage: Stage, recipe: Recipe, used: str | None) -> str:
    """Whether it is the same file, and, if not, what may be why."""
    if stage.sha256 == listed.sha256:
        return f"{recipe.name} is byte for byte the file that is listed"
    now = versions([recipe.format])
    why = [
        f"{name} was {was}, is {now.get(name, 'missing')}"
        for name, was in listed.tools.items()
        if now.get(name) != was
    ]
    if listed.imatrix != used:
        why.append("the importance matrix is another, from another text or processor")
    reasons = "; ".join(why) or "the same tools and text, on another machine"
    return f"{recipe.name} is not byte for byte the file that is listed: {reasons}"


_AIMS = (0.97, 0.96, 0.93)  # of the bound, try by try
_NEAR = 0.93  # of the bound: a file below it wastes bytes
_TUNE = 2048  # scored tokens of the second text
_MEGABYTE = 1_000_000
_WASTED = 0.005  # of a bound of bytes: more of it is worth another try
_LEAST_KL = 1e-12  # where nothing is lost
_SPARE = 0.001  # of it: what cannot be told to the byte


@dataclass(frozen=True, slots=True)
class _Try:
    """A file at ``path`` with ``types`` by tensor. What it was found to lose, where that was
    measured: on the second text, and on the last with its standard error."""

    stage: Stage
    path: Path
    types: Types
    tuned: float | None = None
    verdict: float = 0.0
    over: float = 0.0  # by how much it is beyond the bound

    @property
    def worst(self) -> float:
        """The larger one of both texts."""
        return max(self.verdict, self.tuned or 0.0)


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
    tries = _search(plan) if target.bound == "kl" else _within(plan)
    done = tries[-1]
    cached: dict[str, Any] = {}
    if plan.target.cache != "f16" and isinstance(plan.maker, GgufMaker):
        base = refer_deep(run, plan.maker.export, plan.tune, target.context)
        file = run, job.recipe, done.path, done.stage.sha256, base.found, {"reference": base.key}
        kl, full = (divergence(*file, kind).kl_mean for kind in (plan.target.cache, "f16"))
        cached = {"cache_kl": kl, "cache_tokens": base.found.windows.length}
        cached["cache_loss"] = max(kl - full, 0.0)

    def keep(folder: Path) -> JsonObject:
        if done.path.is_dir():
            shutil.copytree(done.path, folder / done.path.name, copy_function=os.link)
        else:
            os.link(done.path, folder / done.path.name)
        return {**done.stage.value, "allocation": asdict(_allocation(plan, tries)) | cached}

    return run.stages.run("build", job.key, keep, valid=is_build)


def _within(plan: TargetPlan) -> list[_Try]:
    """All tries; the last is the file of the least predicted divergence, or time, that is small
    enough. What a file has besides the tensors whose types are chosen is known once there is
    one."""
    table, limit = plan.table, plan.limit
    least, tries = table.least(size), list[_Try]()
    room = limit - plan.maker.besides(table, plan.target)
    chosen, taken, grows = 0.0, 0.0, 1.0
    for number in range(1, len(_AIMS) + 1):
        types = solve(table.units, plan.cost(loss), size, room)
        if types is None:
            raise MissedTargetError(_too_small(plan, limit - room + least))
        if tries and types == tries[-1].types:
            break
        made = _build(plan, types, number)
        before = chosen, taken
        chosen = table.total(types).bytes
        taken = plan.maker.taken(made.path, plan.target)
        left = limit - taken
        if left < 0 and chosen <= least:
            raise MissedTargetError(_too_small(plan, taken))
        tries.append(replace(made, over=-left))
        if 0 <= left <= room - chosen + _WASTED * limit:
            break
        if len(tries) > 1 and chosen != before[0]:  # a byte of weights may take more than one
            grows = max((taken - before[1]) / (chosen - before[0]), 1.0)
        room = max(chosen + left / grows - _SPARE * limit, least)
    return _best_last(plan, tries)


def _search(plan: TargetPlan) -> list[_Try]:
    """All tries; the last is the smallest, or fastest, file that keeps the bound on the last text.
    Each asks for as much less, or more, as those before were off."""
    measuring, bound, table = plan.run.plan, plan.target.value, plan.table
    assert measuring is not None, "refused by `require_sense`"
    off, tries = _experience(plan, measuring), list[_Try]()
    for number, aim in enumerate(_AIMS, 1):
        types = solve(table.units, plan.cost(size), loss, aim * bound / off)
        if types is None or (tries and types == tries[-1].types):
            break
        made = _measured(plan, measuring, _build(plan, types, number))
        tries.append(made)
        # Of what it was predicted to lose: the fastest file may not need all that it may lose.
        off = made.worst / max(table.total(types).kl, _LEAST_KL)
        if _NEAR * bound <= made.verdict <= bound:
            break
    if not tries:
        raise MissedTargetError(
            f"{plan.recipe.name} cannot be kept: {plan.run.base.name} is predicted to lose"
            f" {table.least(loss):.2g} nats with its tensors in the best types already"
        )
    return _best_last(plan, tries)


def _experience(plan: TargetPlan, measuring: Measuring) -> float:
    """Measured over predicted, of the file in the folder that was built for a target and is nearest
    to the bound; 1 without one."""
    run, bound = plan.run, plan.target.value
    known = [
        (max(e.fidelity.kl_mean + e.fidelity.kl_error, e.allocation.tuned or 0.0), e.allocation)
        for e in run.space.manifest.files
        if e.format == plan.recipe.format and e.source == run.fingerprint
        if e.measurement == measuring.key and e.fidelity and e.allocation
    ]
    found = [(lost, lost / of.predicted) for lost, of in known if lost > 0 and of.predicted > 0]
    return min(found, key=lambda one: abs(math.log(one[0] / bound)), default=(0.0, 1.0))[1]


def _best_last(plan: TargetPlan, tries: Sequence[_Try]) -> list[_Try]:
    """Put the try last that keeps the bound and is nearest to it. Raises
    MissedTargetError if none does."""
    kept = [one for one in tries if one.over <= 0]
    if not kept:
        raise _missed(plan, tries)
    last = max(kept, key=lambda one: one.over)
    return [*(one for one in tries if one is not last), last]


def _build(plan: TargetPlan, types: Types, number: int) -> _Try:
    run, recipe, line = plan.run, plan.recipe, plan.line
    inputs = {"from": plan.maker.key, "types": dict(types), "name": recipe.name, "line": line}
    key = stage_key("try", {**inputs, "tools": versions([recipe.format])})

    def make(folder: Path) -> JsonObject:
        metadata = described(plan.target.name, types, line, plan.target.cache)
        return plan.maker.make(recipe, plan.table, types, metadata, folder)

    text = f"quantizing to {recipe.name}, try {number}"
    stage = run.stages.run("try", key, make, text, valid=is_build)
    return _Try(stage, stage.folder / recipe.output_name(run.base.name), types)


def _measured(plan: TargetPlan, measuring: Measuring, made: _Try) -> _Try:
    """With its divergences on both texts that had no part in the table."""
    run, file = plan.run, (plan.run, plan.recipe, made.path, made.stage.sha256)
    known = read_measured(plan.tune, _TUNE)
    tuned = divergence(*file, refer_to(run, plan.tune, known), known)
    final = divergence(*file, know_original(run, measuring), measuring.text)
    run.progress.note(
        f"{plan.recipe.name}, a bound of {plan.target.value:g}: {human(made.stage.bytes)},"
        f" predicted {plan.table.total(made.types).kl:.4g}, {tuned.kl_mean:.4g} on the text for"
        f" tries, {final.kl_mean:.4g} +- {final.kl_error:.2g} on the last"
    )
    verdict = final.kl_mean + final.kl_error
    over = verdict - plan.target.value
    return replace(made, tuned=tuned.kl_mean, verdict=verdict, over=over)


def _allocation(plan: TargetPlan, tries: Sequence[_Try]) -> Allocation:
    done, table = tries[-1], plan.table
    total = table.total(done.types)
    larger = solve(table.units, loss, size, total.bytes + _MEGABYTE)
    return Allocation(
        dict(done.types),
        total.kl,
        len(tries),
        tuned=done.tuned,
        next_mb=table.total(larger).kl if larger else None,
        step_s=plan.times.step(table, done.types) if plan.times else None,
        rows=plan.target.rows,
        rebuild=plan.line,
        cache=plan.target.cache,
    )


def _too_small(plan: TargetPlan, least: float) -> str:
    name, target = plan.run.base.name, plan.target
    if target.bound == "bits":
        why = f"{name} takes at least {least * 8 / plan.maker.weights:.3g} bits a weight"
    elif target.bound == "memory":
        why = f"{name} takes at least {human(least)} with {target.context:,} tokens of context"
    else:
        why = f"the smallest file of {name} has about {human(least)}"
    return f"{plan.recipe.name} cannot be kept: {why}"


def _missed(plan: TargetPlan, tries: Sequence[_Try]) -> MissedTargetError:
    """No file kept the bound: the nearest is put beside the others, unlisted."""
    space, nearest = plan.run.space, min(tries, key=lambda one: one.over)
    suffix = ".gguf" if plan.recipe.format == "gguf" else ""
    aside = f"{nearest.path.name.removesuffix(suffix)}.missed{suffix}"
    space.move_out(nearest.path, aside)
    if nearest.tuned is None:
        found = f"takes {human(nearest.over)} too much"
    else:
        found = f"loses {nearest.verdict:.4g} nats"
    return MissedTargetError(
        f"{plan.recipe.name} is not kept: the nearest of {len(tries)} tries {found}."
        f" Nothing was published for it; that file is {space.out / aside}, which nothing lists:"
        " delete it when you have seen enough of it"
    )
