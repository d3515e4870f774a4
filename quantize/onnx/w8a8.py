"""8-bit weights and 8-bit activations: the matrix products of the builder's float graph, rewritten.

onnxruntime's own `quantize_dynamic` takes one scale for all activations of a product, so that a row
of a batch changes with its companions. Here every row has its own:

    scale = max|x| / 127 of the row          codes = QuantizeLinear(x, scale, 128, axis=0)
    y = MatMulInteger(codes, weights) * scale of the output channel * scale of the row
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from quantize.children import report_progress
from quantize.onnx.graphfile import EMBEDDING, NAME, Constants, Inserter, data_file
from quantize.onnx.rounding import round_channels
from quantize.onnx.smooth import Smoothing, measure_smoothing, product_weight
from runtimes.errors import ModelError

_ZERO = 128  # activations are stored unsigned
_MOST = 127.0
_TINY = 1e-30  # the scale of a row of zeros


def quantize_w8a8(
    fp32: Path,
    out: Path,
    calibration: Path | None = None,
) -> list[str]:
    """Rewrite the ONNX folder ``fp32`` into the new folder ``out``; what the user should know.

    With ``calibration``, a text, activations are smoothed before they are rounded. Needs memory for
    a few of the largest matrices. Raises ModelError for a graph without constant matrix products.
    """
    smoothing = Smoothing()
    if calibration is not None:
        smoothing = measure_smoothing(fp32, calibration)
    out.mkdir()
    for path in fp32.iterdir():
        if path.is_file() and path.name not in (NAME, f"{NAME}.data"):
            shutil.copy2(path, out / path.name)
    model = ir.load(fp32 / NAME)
    products = [node for node in model.graph if product_weight(node) is not None]
    if not products:
        raise ModelError(f"{fp32 / NAME} has no matrix product with a constant to rewrite")
    with data_file(model, out / NAME) as file:
        rewrite = Rewrite(model.graph, file, smoothing)
        smoothing.fold_norms(model.graph, file)
        for done, node in enumerate(products):
            report_progress(done, len(products), "matrices")
            rewrite.product(node)
        shrunk = rewrite.shrink_table()
    report_progress(len(products), len(products), "matrices")
    notes = [f"{len(products)} matrix products with 8-bit weights and activations"]
    return [*notes, *smoothing.notes, *shrunk]


@dataclass(frozen=True, slots=True)
class _Rows:
    """An activation as rows: codes [rows, inputs], scale [rows, 1], its leading dimensions."""

    codes: Any
    scale: Any
    leading: Any


@dataclass(slots=True)
class Rewrite:
    """The graph on its way. ``activations`` and ``matrices`` (codes and scales) have what is in
    8 bits already, by the names of the float values."""

    graph: Any
    file: Constants
    smoothing: Smoothing = field(default_factory=Smoothing)
    constants: dict[str, Any] = field(default_factory=dict)
    activations: dict[str, _Rows] = field(default_factory=dict)
    matrices: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def product(self, node: Any) -> None:
        """Multiply 8-bit rows by 8-bit weights instead."""
        weight = node.inputs[1]
        rows = self.rows(node)
        if weight.name not in self.matrices:
            self.matrices[weight.name] = self.matrix(node, weight)
        matrix, scale = self.matrices[weight.name]
        outputs = int(weight.shape[1])
        zero = self.constant("w8a8.zero", _ZERO, np.uint8)
        width = self.constant(f"w8a8.width.{outputs}", [outputs])
        new = Inserter(self.graph, node, f"{node.name}/")
        product = new.add("MatMulInteger", "Integer", rows.codes, matrix, zero)
        # Two vectorised steps: DequantizeLinear would do both in one, and takes twice as long.
        number = new.add("Cast", "Float", product, to=ir.DataType.FLOAT)
        scaled = new.add("Mul", "Channels", number, scale)
        full = new.add("Mul", "Rows", scaled, rows.scale)
        shape = new.add("Concat", "Shape", rows.leading, width, axis=0)
        new.replace_by(new.add("Reshape", "Reshape", full, shape))
        if not weight.uses():
            self.graph.initializers.pop(weight.name, None)

    def rows(self, node: Any) -> _Rows:
        """The product's activation as 8-bit rows, made once for all products that read it."""
        value = node.inputs[0]
        if value.name in self.activations:
            return self.activations[value.name]
        inputs = int(node.inputs[1].shape[0])
        flat_shape = self.constant(f"w8a8.rows.{inputs}", [-1, inputs])
        last = self.constant("w8a8.axis", [1])
        step = self.constant("w8a8.step", 1 / _MOST, np.float32)
        tiny = self.constant("w8a8.tiny", _TINY, np.float32)
        new = Inserter(self.graph, node, f"{value.name}/w8a8/")
        leading = new.add("Shape", "Leading", value, end=-1)
        flat = new.add("Reshape", "Flat", value, flat_shape)
        size = new.add("Abs", "Abs", flat)
        most = new.add("ReduceMax", "Max", size, last, keepdims=1)
        steps = new.add("Mul", "Step", most, step)
        scale = new.add("Max", "Scale", steps, tiny)
        column = new.add("Squeeze", "Column", scale, last)
        count = new.add("Shape", "Count", column)
        zero = ir.tensor(np.array([_ZERO], np.uint8))
        zeros = new.add("ConstantOfShape", "Zeros", count, value=zero)
        codes = new.add("QuantizeLinear", "Codes", flat, column, zeros, axis=0)
        self.activations[value.name] = _Rows(codes, scale, leading)
        return self.activations[value.name]

    def matrix(self, node: Any, weight: Any) -> tuple[Any, Any]:
        """The product's weights as codes [inputs, outputs], and scales [outputs].

        An output layer that shares its matrix with the embedding is stored as the table, a row for
        each token, and turned round where it is multiplied: once, when the graph is loaded.
        """
        values = self.smoothing.scaled(node.name, weight.const_value.numpy())
        codes, scales = round_channels(values.T)
        scale = self.file.initializer(f"{weight.name}.scales", scales)
        table = _table_of(weight)
        if table is None:
            return self.file.initializer(f"{weight.name}.codes", codes.T), scale
        stored = self.file.initializer(f"{weight.name}.codes", codes)
        turn = Inserter(self.graph, node, f"{node.name}/")
        turned = turn.add("Transpose", "Transpose", stored, perm=[1, 0])
        self.replace_lookup(next(use.node for use in table.outputs[0].uses()), stored, scale)
        self.graph.remove(table, safe=True)
        return turned, scale

    def shrink_table(self) -> list[str]:
        """Store an embedding table of its own in 8 bits, with a scale for each row."""
        for node in self.graph:
            if node.name != EMBEDDING or not node.inputs[0].is_initializer():
                continue
            table = node.inputs[0]
            if table.const_value.dtype != ir.DataType.FLOAT or len(table.uses()) != 1:
                continue
            codes, scales = round_channels(table.const_value.numpy())
            stored = self.file.initializer(f"{table.name}.codes", codes)
            scale = self.file.initializer(f"{table.name}.scales", scales)
            self.replace_lookup(node, stored, scale)
            self.graph.initializers.pop(table.name)
            return ["the embedding table is stored in 8 bits"]
        return []

    def replace_lookup(self, gather: Any, table: Any, scale: Any) -> None:
        """Look up codes [tokens, inputs] and scales [tokens] instead of floats."""
        last = self.constant("w8a8.last", [-1])
        ids = gather.inputs[1]
        new = Inserter(self.graph, gather, f"{gather.name}/")
        codes = new.add("Gather", "Codes", table, ids, axis=0)
        number = new.add("Cast", "Float", codes, to=ir.DataType.FLOAT)
        steps = new.add("Gather", "Scales", scale, ids, axis=0)
        column = new.add("Unsqueeze", "Column", steps, last)
        new.replace_by(new.add("Mul", "Scaled", number, column))

    def constant(self, name: str, value: float | list[int], dtype: Any = np.int64) -> Any:
        """A small constant in the graph itself, where shape inference sees it."""
        if name not in self.constants:
            tensor = ir.tensor(np.array(value, dtype))
            node = ir.node("Constant", [], {"value": tensor}, name=name)
            node.outputs[0].name = name
            self.graph.insert_before(self.graph[0], node)
            self.constants[name] = node.outputs[0]
        return self.constants[name]


def _table_of(weight: Any) -> Any | None:
    """The node that turns the output layer's matrix into the embedding table, if one does."""
    turns = [use.node for use in weight.uses() if use.node.op_type == "Transpose"]
    if len(turns) != 1:
        return None
    uses = turns[0].outputs[0].uses()
    return turns[0] if len(uses) == 1 and uses[0].node.op_type == "Gather" else None
