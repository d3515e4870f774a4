"""What every try of one target shares: table, text for tries, and how a file of its format is
made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from quantize.allocate.measure import TextFiles, calibration_text, sensitivities, split_texts
from quantize.allocate.solve import Figure, Rater, mixes
from quantize.allocate.speed import StepTimes, Timing, step_times
from quantize.allocate.table import TypeTable
from quantize.build.run import Run
from quantize.build.target_files import gguf_maker, onnx_maker
from quantize.onnx.variants import W8A8
from quantize.recipes.recipe import ONNX, Recipe
from quantize.recipes.target import QualityTarget

_ANY_SIZE = QualityTarget("bytes", 0.0, "")


class Maker(Protocol):
    """A format's part."""

    @property
    def key(self) -> str:
        """Of all that decides a file besides its types."""
        ...

    @property
    def used(self) -> str | None:
        """The importance matrix, in words."""
        ...

    @property
    def rater(self) -> Rater:
        """What tries the format's types."""
        ...

    @property
    def weights(self) -> int:
        """How many the model has."""
        ...

    def chosen(self, table: TypeTable) -> TypeTable:
        """The tensors whose types a file of this format can choose. Raises ModelError."""
        ...

    def besides(self, table: TypeTable, target: QualityTarget) -> float:
        """What counts for ``target``'s bound besides the bytes of these tensors, before there is a
        file; a guess may be wrong by a little."""
        ...

    def taken(self, path: Path, target: QualityTarget) -> float:
        """What counts of the file at ``path``, in bytes."""
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
        """What the chosen types should have little of: time where speed is wanted."""
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
    """What makes files of the recipe's format, and the texts that it and tries go by. Raises
    UsageError for texts that share a passage."""
    given, final = calibration_text(run.options, run.base), run.options.measure.text
    texts = split_texts(given, final).write(run.space.work)
    make = onnx_maker if recipe.format == ONNX else gguf_maker
    return make(run, texts.calibrate), texts


def chosen_table(run: Run, recipe: Recipe, maker: Maker, text: Path) -> TypeTable:
    """Of the tensors whose types ``maker`` can choose. What is not known yet is measured over
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
