"""ONNX folders for targets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from quantize.allocate.onnx_types import fused, onnx_rater
from quantize.allocate.rate import Rater
from quantize.allocate.speed import Seconds, Shape, Timing
from quantize.allocate.table import TypeTable
from quantize.build.run import Run
from quantize.onnx.build import build_onnx
from quantize.onnx.sizes import beside_weights, one_product_for_qkv, table_is_float
from quantize.onnx.variants import Mix
from quantize.recipes.bits import bits_per_weight
from quantize.recipes.recipe import Recipe
from quantize.recipes.target import QualityTarget
from quantize.source import SourceModel
from quantize.source.shapes import Shapes, shapes_of
from quantize.stages.stages import stage_key, versions
from quantize.stages.verify import digest
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings

_FLOAT = 4  # bytes of a weight that is not rounded
_TABLE = "token_embd.weight"


@dataclass(frozen=True)
class OnnxMaker:
    """From the model ``source``, of so many ``weights``; ``key`` is of its files, of the text that
    its sensitivities are measured on, and of the programs."""

    source: SourceModel
    weights: int
    key: str
    used: None = None

    @property
    def rater(self) -> Rater:
        """What tries the ways to store a matrix."""
        return onnx_rater(self.key)

    @cached_property
    def shapes(self) -> Shapes:
        """Of the model's weights."""
        return shapes_of(self.source)

    def chosen(self, table: TypeTable) -> TypeTable:
        """A product of the graph is one, and may have several tensors."""
        units = table.units
        if table_is_float(self.shapes):
            units = tuple(unit for unit in units if unit.name != _TABLE)
        if one_product_for_qkv(self.shapes):
            units = fused(units)
        return replace(table, units=units)

    def besides(self, table: TypeTable, target: QualityTarget) -> float:
        """What counts besides the tensors whose types are chosen; of memory a part of it only, as
        what a session takes is known of a file."""
        chosen = sum(unit.weights for unit in table.units)
        whole = sum(math.prod(shape) for shape in self.shapes.weights.values())
        floats = _FLOAT * max(whole - chosen, 0)
        return floats + (beside_weights(self.source, self.shapes) if target.bound == "bytes" else 0)

    def taken(self, path: Path, target: QualityTarget) -> float:
        """What counts of a folder."""
        if target.bound == "bits":
            return bits_per_weight(path, self.weights) * self.weights / 8
        if target.bound == "bytes":
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        settings = RunnerSettings(slots=1, context=target.context)
        return estimate(read_model(path), settings).total

    def timing(self, run: Run, recipe: Recipe, table: TypeTable) -> Timing:
        """By ONNX Runtime's kernels; the reference has the largest types."""
        types = {u.name: max(u.choices, key=lambda c: c.bytes).kind for u in table.units}

        def reference() -> Path:
            folder = run.space.work / "reference"
            folder.mkdir(exist_ok=True)
            with run.progress.stage("building a file to time"):
                self.make(run, recipe, table, types, {}, folder)
            return folder / recipe.output_name(run.base.name)

        return Timing(_kernel_seconds, "onnxruntime", reference, types)

    def make(
        self,
        run: Run,
        recipe: Recipe,
        table: TypeTable,
        types: Mapping[str, str],
        metadata: Mapping[str, str],
        folder: Path,
    ) -> tuple[list[str], str]:
        """It, in ``folder``; what the user should know, and which tool made it."""
        importance = run.space.work / "importance.npz"
        arrays = {unit.name: np.array(unit.importance, np.float32) for unit in table.units}
        np.savez(importance, **arrays)  # type: ignore[arg-type]
        exports = run.space.work / "float-graph"
        exports.mkdir(exist_ok=True)
        mix = Mix(types, importance, metadata)
        made = build_onnx(
            *(self.source, recipe, folder), progress=run.progress, exports=exports, mix=mix
        )
        return made.notes, made.route


def _kernel_seconds(
    shapes: list[Shape], kinds: list[str], rows: tuple[int], model_bytes: int
) -> Seconds:
    """Runs in a child process, which has the libraries."""
    from quantize.onnx.kernels import kernel_seconds

    return kernel_seconds(shapes, kinds, rows, model_bytes)


def onnx_maker(run: Run, text: Path) -> OnnxMaker:
    """With sensitivities of ``text``."""
    inputs = {"source": run.inputs, "text": digest(text).sha256, "tools": versions(["onnx"])}
    return OnnxMaker(run.source, run.base.parameters, stage_key("sensitivities", inputs))
