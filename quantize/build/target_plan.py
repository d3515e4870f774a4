"""What every try of one target shares: table, texts, importance matrix, and the room there is."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from quantize.allocate.measure import sensitivities
from quantize.allocate.solve import Figure, mixes
from quantize.allocate.speed import StepTimes, step_times
from quantize.allocate.table import Table
from quantize.allocate.texts import calibration_text, split_texts
from quantize.build.making import Export, export_gguf, importance
from quantize.build.run import Run
from quantize.recipes.target import Target
from quantize.stages.stages import matrix_key, stage_key
from runtimes.errors import ModelError
from runtimes.models.gguf import GgufHeader, read_header
from runtimes.models.memory import estimate
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings

_UNKNOWN = 0.02  # of the weights, whose sensitivities may be missing
_TOLD = 40  # bytes of a file's description of itself for each tensor, at most


@dataclass(frozen=True)
class TargetPlan:
    """``matrix`` was made from ``used``; tries are measured on ``tune``; ``times`` are of a target
    that wants speed."""

    target: Target
    table: Table
    export: Export
    matrix: Path
    used: str
    tune: Path
    times: StepTimes | None

    @cached_property
    def header(self) -> GgufHeader:
        """Of the half-precision file."""
        return read_header(self.export.path)

    def cost(self, otherwise: Figure) -> Figure:
        """What the chosen types should have little of: time where speed is wanted."""
        return self.times.of if self.times else otherwise

    @property
    def overhead(self) -> int:
        """Bytes of a file besides the tensors whose types are chosen: the vocabulary, the file's
        description of itself, and tensors that stay as they are."""
        chosen = {unit.name for unit in self.table.units}
        theirs = sum(tensor.nbytes for tensor in self.header.tensors if tensor.name in chosen)
        return self.header.data_bytes_expected - theirs + _TOLD * len(self.header.tensors)

    @property
    def room(self) -> int:
        """Bytes that the tensors whose types are chosen may take together."""
        target = self.target
        if target.bound == "bits":
            weights = sum(math.prod(tensor.shape) for tensor in self.header.tensors)
            chosen = {unit.name for unit in self.table.units}
            fixed = sum(t.nbytes for t in self.header.tensors if t.name not in chosen)
            return int(target.value * weights / 8) - fixed
        taken = self.overhead
        if target.bound == "memory":  # keys and values, activations and the runtime
            settings = RunnerSettings(slots=1, context=target.context)
            whole = estimate(ModelFile.read(self.export.path), settings)
            taken += whole.total - whole.weights
        return int(target.value) - taken


def plan_target(run: Run, target: Target) -> TargetPlan:
    """Measure what is not known yet. Raises UsageError for texts that share a passage, ModelError
    for a model whose weights are not understood."""
    export, work = export_gguf(run), run.space.work
    given, final = calibration_text(run.options, run.base), run.options.measure.text
    texts = split_texts(given, final).write(work)
    key = matrix_key(run.inputs, texts.calibrate)
    matrix, used = importance(run, key, texts.calibrate, export)
    known = stage_key("sensitivities", {"matrix": key, "export": export.sha256})
    table = sensitivities(run.source, known, texts.calibrate, matrix, work, run.progress)
    table = _in_file(table, read_header(export.path))
    plan = TargetPlan(target, table, export, matrix, used, texts.tune, None)
    front = ((float(plan.overhead + mix.bytes), mix.kl) for mix in mixes(table.units))
    run.space.describe(mixes=tuple(front))
    times = None
    if target.rows:
        nbytes = sum(min(choice.bytes for choice in unit.choices) for unit in table.units)
        times = step_times(table, export.path, target.rows, nbytes, work, run.progress)
    return replace(plan, table=_overridden(table, run.options.overrides), times=times)


def _in_file(table: Table, header: GgufHeader) -> Table:
    """The tensors that the file has, under the same name and in the same shape."""
    shapes = {tensor.name: tensor.shape for tensor in header.tensors if len(tensor.shape) > 1}
    units = tuple(
        unit
        for unit in table.units
        if math.prod(shapes.get(unit.name, (0,))) == unit.weights
        and shapes[unit.name][0] == unit.width
    )
    there = sum(math.prod(shape) for shape in shapes.values())
    known = sum(unit.weights for unit in units)
    if known < (1 - _UNKNOWN) * there:
        missing = sorted(shapes.keys() - {unit.name for unit in units})
        raise ModelError(
            f"sensitivities are known for {known / there:.0%} of the weights only: {missing[0]} and"
            f" {len(missing) - 1} more are not understood. Build a recipe by name instead"
        )
    return replace(table, units=units)


def _overridden(table: Table, overrides: Mapping[str, str]) -> Table:
    """Without the choices that the user has made."""
    units = []
    for unit in table.units:
        kind = next((k for pattern, k in overrides.items() if re.search(pattern, unit.name)), None)
        kept = tuple(choice for choice in unit.choices if kind in (None, choice.kind))
        units.append(replace(unit, choices=kept or unit.choices))
    return replace(table, units=tuple(units))
