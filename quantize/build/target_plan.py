"""Plan of a target: what all of its tries share, and the same file exactly again from the types
that a manifest lists.
"""

import re
import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from quantize.allocate.measure import TextFiles, calibration_text, sensitivities, split_texts
from quantize.allocate.solve import Figure, Rater, TypeTable, mixes
from quantize.allocate.speed import StepTimes, Timing, step_times
from quantize.build.run import BuildJob, Run, is_build
from quantize.build.target_files import gguf_maker, onnx_maker
from quantize.errors import SourceError, UsageError
from quantize.gguf.quantize import LONGEST
from quantize.hub.client import parse_hub_name
from quantize.manifest import NAME, FileEntry, load_manifest
from quantize.onnx.variants import W8A8
from quantize.options import Options
from quantize.recipes import ONNX, QualityTarget, Recipe
from quantize.source import SourceModel
from quantize.stages import Stage, versions

_ANY_SIZE = QualityTarget("bytes", 0.0, "")


class Maker(Protocol):
    """A format's part."""

    @property
    def key(self) -> str:
        """Key of all that decides a file besides its types."""
        ...

    @property
    def used(self) -> str | None:
        """The importance matrix, in words."""
        ...

    @property
    def rater(self) -> Rater:
        """Rater of the format's types."""
        ...

    @property
    def weights(self) -> int:
        """How many the model has."""
        ...

    def chosen(self, table: TypeTable) -> TypeTable:
        """The tensors whose types a file of this format can choose. Raises ModelError."""
        ...

    def besides(self, table: TypeTable, target: QualityTarget) -> float:
        """Bytes that count for ``target``'s bound besides the bytes of these tensors, before there
        is a file; a guess may be wrong by a little."""
        ...

    def taken(self, path: Path, target: QualityTarget) -> float:
        """Bytes of the file at ``path`` that count for the bound."""
        ...

    def timing(self, run: Run, recipe: Recipe, table: TypeTable) -> Timing:
        """How a step's products are timed."""
        ...

    def make(
        self,
        run: Run,
        recipe: Recipe,
        table: TypeTable,
        types: Mapping[str, str],
        metadata: Mapping[str, str],
        folder: Path,
    ) -> tuple[list[str], str]:
        """The file in ``folder``; what the user should know, and which tool made it."""
        ...


@dataclass(frozen=True)
class TargetPlan:
    """Tries are measured on ``tune``; ``times`` are of a target that wants speed."""

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
    def besides(self) -> float:
        """Bytes that count besides the tensors whose types are chosen, before there is a file."""
        return self.maker.besides(self.table, self.target)


def maker_for(run: Run, recipe: Recipe) -> tuple[Maker, TextFiles]:
    """Maker of files of the recipe's format, and the texts for it and for tries. Raises
    UsageError for texts that share a passage."""
    given, final = calibration_text(run.options, run.base), run.options.measure.text
    texts = split_texts(given, final).write(run.space.work)
    make = onnx_maker if recipe.format == ONNX else gguf_maker
    return make(run, texts.calibrate), texts


def chosen_table(run: Run, recipe: Recipe, maker: Maker, text: Path) -> TypeTable:
    """Table of the tensors whose types ``maker`` can choose. What is not known yet is measured over
    ``text``, in one pass for both formats. Raises ModelError for a model whose weights are not
    understood."""
    raters, wanted = [maker.rater], run.options.recipes
    if recipe.format != ONNX and any(r.target and r.format == ONNX for r in wanted):
        raters.append(onnx_maker(run, text).rater)
    return maker.chosen(sensitivities(run.source, raters, text, run.space.work, run.progress)[0])


def plan_target(run: Run, recipe: Recipe, target: QualityTarget) -> TargetPlan:
    """Measure what is not known yet. Raises what `maker_for` and `chosen_table` raise."""
    maker, texts = maker_for(run, recipe)
    table, times = chosen_table(run, recipe, maker, texts.calibrate), None
    if not target.rows:  # it is there for its speed
        table = _without(table, W8A8)
    if target.rows:
        least = sum(min(choice.bytes for choice in unit.choices) for unit in table.units)
        timing = maker.timing(run, recipe, table)
        work = run.space.work
        times = step_times(table, timing, target.rows, least, work, run.progress)
    taken = maker.besides(table, _ANY_SIZE)
    front = tuple((taken + mix.bytes, mix.kl) for mix in mixes(table.units))
    run.space.describe(**{"onnx_mixes" if recipe.format == ONNX else "mixes": front})
    if recipe.format != ONNX:
        table = _overridden(table, run.options.overrides)
    return TargetPlan(target, table, maker, texts.tune, times)


def _without(table: TypeTable, kind: str) -> TypeTable:
    units = (
        replace(unit, choices=tuple(choice for choice in unit.choices if choice.kind != kind))
        for unit in table.units
    )
    return replace(table, units=tuple(units))


def _overridden(table: TypeTable, overrides: Mapping[str, str]) -> TypeTable:
    """Without the choices that the user has made."""
    units = []
    for unit in table.units:
        kind = next((k for pattern, k in overrides.items() if re.search(pattern, unit.name)), None)
        kept = tuple(choice for choice in unit.choices if kind in (None, choice.kind))
        units.append(replace(unit, choices=kept or unit.choices))
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
    for pattern, kind in options.overrides.items():
        words += ["--override", f"{pattern}={kind}"]
    if given.allow_pickle:
        words.append("--allow-pickle")
    if given.trust_remote_code:
        words.append("--trust-remote-code")
    return shlex.join([*words, "--allocation", f"{NAME}#{recipe.name}"])


def described(target: str, types: Mapping[str, str], line: str) -> dict[str, str]:
    """Metadata of a file: its ``target``, the tensors of every type, and the ``line`` that
    builds it again."""
    tensors: dict[str, list[str]] = {}
    for name, kind in types.items():
        tensors.setdefault(kind, []).append(name.removeprefix("blk.").removesuffix(".weight"))
    found = {"ingot.target": target}
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
    maker, texts = maker_for(run, recipe)
    table = TypeTable((), 0, "")
    if recipe.format == ONNX:  # rounded by what the table says of input channels
        table = chosen_table(run, recipe, maker, texts.calibrate)
    metadata = described(recipe.target.name, allocation.types, allocation.rebuild)

    def make(folder: Path) -> dict[str, Any]:
        notes, route = maker.make(run, recipe, table, allocation.types, metadata, folder)
        made = {"notes": notes, "route": route, "runs_here": True, "imatrix": maker.used}
        return {**made, "allocation": asdict(allocation)}

    text = f"quantizing to {recipe.name} as listed"
    stage = run.stages.run("build", job.key, make, text, valid=is_build)
    run.progress.note(_compared(listed, stage, recipe, maker.used))
    return stage


def _compared(listed: FileEntry, stage: Stage, recipe: Recipe, used: str | None) -> str:
    """Whether it is the same file, and, if not, what may be why."""
    if {name: found.sha256 for name, found in stage.files.items()} == listed.sha256:
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
