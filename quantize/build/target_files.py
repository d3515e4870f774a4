"""Files for targets: GGUF files and ONNX folders."""

import math
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from quantize.allocate.solve import Rater, Types, TypeTable
from quantize.allocate.speed import Shape, Timed
from quantize.allocate.types import fused, gguf_unit, onnx_unit
from quantize.build.run import (
    Export,
    Run,
    export_gguf,
    importance,
    make_graph,
    moments_of,
    quantize_export,
)
from quantize.disk import files_of
from quantize.gguf.ggml import products
from quantize.manifest import digest
from quantize.onnx.builder import beside_weights, one_product_for_qkv, table_is_float
from quantize.recipes import Mix, QualityTarget, Recipe, bits_per_weight
from quantize.source.shapes import Shapes, shapes_of, weights_in
from quantize.stages import JsonObject, matrix_key, stage_key, versions
from runtimes.errors import ModelError
from runtimes.models.gguf import GgufHeader, read_header
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings

_UNKNOWN = 0.02  # of the weights, whose sensitivities may be missing
_EXPERTS = ("expert_used_count", "expert_count")  # that a token goes through, and all
_TOLD = 40  # bytes of a file's description of itself for each tensor, at most


@dataclass(frozen=True)
class GgufMaker:
    """Files of ``run`` from the half-precision ``export``, with an importance ``matrix`` of
    ``text`` that is ``used`` in words; ``matrix_key`` is its stage's."""

    run: Run
    export: Export
    matrix: Path
    used: str
    matrix_key: str
    text: Path

    @property
    def key(self) -> str:
        """Key of all that decides a file besides its types."""
        gptq = " gptq" if self.run.options.gptq else ""
        return f"{self.export.sha256} {self.used}{gptq}"

    @property
    def rater(self) -> Rater:
        """Rater of llama.cpp's types."""
        inputs = {"matrix": self.matrix_key, "export": self.export.sha256}
        return Rater(stage_key("sensitivities", inputs), partial(gguf_unit, self.matrix))

    @cached_property
    def header(self) -> GgufHeader:
        """Header of the half-precision file."""
        return read_header(self.export.path)

    @property
    def weights(self) -> int:
        """How many the model has."""
        return sum(math.prod(tensor.shape) for tensor in self.header.tensors)

    def chosen(self, table: TypeTable) -> TypeTable:
        """The tensors that the file has, under the same name and in the same shape."""
        tensors = self.header.tensors
        shapes = {tensor.name: tensor.shape for tensor in tensors if len(tensor.shape) > 1}
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
                f"sensitivities are known for {known / there:.0%} of the weights only: {missing[0]}"
                f" and {len(missing) - 1} more are not understood. Build a recipe by name instead"
            )
        return replace(table, units=units)

    def besides(self, table: TypeTable, target: QualityTarget) -> float:
        """Bytes that count besides the tensors whose types are chosen: of a file the vocabulary,
        its description of itself, and tensors that stay as they are."""
        chosen, tensors = {unit.name for unit in table.units}, self.header.tensors
        if target.bound == "bits":
            return sum(tensor.nbytes for tensor in tensors if tensor.name not in chosen)
        theirs = sum(tensor.nbytes for tensor in tensors if tensor.name in chosen)
        overhead = self.export.path.stat().st_size - theirs + _TOLD * len(tensors)
        if target.bound == "bytes":
            return overhead
        # Keys and values, activations and the runtime.
        whole = estimate(read_model(self.export.path), _one_chat(target))
        return overhead + whole.total - whole.weights

    def taken(self, path: Path, target: QualityTarget) -> float:
        """Bytes of a file that count for the bound."""
        if target.bound == "bits":
            return sum(tensor.nbytes for tensor in read_header(path).tensors)
        return _counted(path, target)

    def timed(self, _recipe: Recipe, table: TypeTable) -> Timed:
        """Llama.cpp's kernels; the reference is in half precision."""
        metadata = self.header.metadata
        names = [f"{metadata.get('general.architecture')}.{name}" for name in _EXPERTS]
        used, count = (n if isinstance(n := metadata.get(name), int) else 0 for name in names)
        halves = {unit.name: "f16" for unit in table.units}
        share = used / count if used and count else 1.0
        return Timed("llama-cpp-python", products, lambda: self.export.path, halves, share)

    def make(
        self,
        recipe: Recipe,
        _table: TypeTable,
        types: Types,
        metadata: Mapping[str, str],
        folder: Path,
    ) -> JsonObject:
        """Write the file into ``folder``; the value of its stage, as `make_file` has it."""
        own = {f"^{re.escape(name)}$": kind for name, kind in types.items()}
        made = self.run, recipe, self.export, folder, self.matrix, self.text
        told = quantize_export(*made, own, metadata)
        notes = [*self.export.notes, *told]
        return {"notes": notes, "route": "llama.cpp", "runs_here": True, "imatrix": self.used}


def gguf_maker(run: Run, text: Path) -> GgufMaker:
    """With an importance matrix of ``text``."""
    export, key = export_gguf(run), matrix_key(run.inputs, text)
    return GgufMaker(run, export, *importance(run, key, text, export), key, text)


def _counted(path: Path, target: QualityTarget) -> float:
    """Bytes on the disk, or of memory with one chat."""
    if target.bound == "bytes":
        return sum(file.stat().st_size for file in files_of(path))
    return estimate(read_model(path), _one_chat(target)).total


def _one_chat(target: QualityTarget) -> RunnerSettings:
    return RunnerSettings(slots=1, context=target.context, kv_type=target.cache)


_FLOAT = 4  # bytes of a weight that is not rounded
_TABLE = "token_embd.weight"


# ONNX folders for targets.


@dataclass(frozen=True)
class OnnxMaker:
    """Folders of ``run``; ``tables`` is of its model's files, of the ``text`` that sensitivities
    are measured on, and of the programs."""

    run: Run
    tables: str
    text: Path
    used: None = None

    @property
    def key(self) -> str:
        """Key of all that decides a folder besides its types."""
        return f"{self.tables} gptq" if self.run.options.gptq else self.tables

    @property
    def weights(self) -> int:
        """How many the model has."""
        return self.run.base.parameters

    @property
    def rater(self) -> Rater:
        """Rater of the ways to store a matrix."""
        return Rater(self.tables, onnx_unit)

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of the model's weights."""
        return shapes_of(self.run.source)

    def chosen(self, table: TypeTable) -> TypeTable:
        """A product of the graph is one, and may have several tensors."""
        units = table.units
        if table_is_float(self.shapes):
            units = tuple(unit for unit in units if unit.name != _TABLE)
        if one_product_for_qkv(self.shapes):
            units = fused(units)
        return replace(table, units=units)

    def besides(self, table: TypeTable, target: QualityTarget) -> float:
        """Bytes that count besides the tensors whose types are chosen; of memory a part of it only,
        as what a session takes is known of a file."""
        chosen = sum(unit.weights for unit in table.units)
        whole = weights_in(self.shapes.weights)
        floats = _FLOAT * max(whole - chosen, 0)
        return floats + (
            beside_weights(self.run.source, self.shapes) if target.bound == "bytes" else 0
        )

    def taken(self, path: Path, target: QualityTarget) -> float:
        """Bytes of a folder that count for the bound."""
        if target.bound == "bits":
            return bits_per_weight(path, self.weights) * self.weights / 8
        return _counted(path, target)

    def timed(self, recipe: Recipe, table: TypeTable) -> Timed:
        """ONNX Runtime's kernels; the reference has the largest types."""
        types = {u.name: max(u.choices, key=lambda c: c.bytes).kind for u in table.units}

        def reference() -> Path:
            folder = self.run.space.work / "reference"
            folder.mkdir(exist_ok=True)
            with self.run.progress.stage("building a file to time"):
                self.make(recipe, table, types, {}, folder)
            return folder / recipe.output_name(self.run.base.name)

        return Timed("onnxruntime", _products, reference, types)

    def make(
        self,
        recipe: Recipe,
        table: TypeTable,
        types: Types,
        metadata: Mapping[str, str],
        folder: Path,
    ) -> JsonObject:
        """Write the folder into ``folder``; as `GgufMaker.make`."""
        importance = self.run.space.work / "importance.npz"
        arrays = {unit.name: np.array(unit.importance, np.float32) for unit in table.units}
        np.savez(importance, **arrays)  # type: ignore[arg-type]
        moments = moments_of(self.run, self.text)
        return make_graph(self.run, recipe, folder, Mix(types, importance, moments, metadata))


def _products(
    kind: str, shape: Shape, rows: int, model_bytes: int
) -> AbstractContextManager[tuple[Callable[[], object], int]]:
    """Runs in a child process, which has the libraries."""
    from quantize.onnx.kernels import products

    return products(kind, shape, rows, model_bytes)


def onnx_maker(run: Run, text: Path) -> OnnxMaker:
    """With sensitivities of ``text``."""
    inputs = {"source": run.inputs, "text": digest(text).sha256, "tools": versions(["onnx"])}
    return OnnxMaker(run, stage_key("sensitivities", inputs), text)


# Both have the same methods: a format's part in a target.
Maker = GgufMaker | OnnxMaker
