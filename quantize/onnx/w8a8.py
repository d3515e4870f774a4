"""8-bit weights and 8-bit activations: the matrix products of the builder's float graph, rewritten.

onnxruntime's own `quantize_dynamic` takes one scale for all activations of a product, so that a row
of a batch changes with its companions. Here every row has its own:

    scale = max|x| / 127 of the row          codes = QuantizeLinear(x, scale, 128, axis=0)
    y = MatMulInteger(codes, weights) * scale of the output channel * scale of the row

SmoothQuant lets weights take over a part of what makes activations hard to round: a few input
channels of a matrix product are often far larger than the others, and a row's one scale must fit
them all. With a factor for each channel,

    y = (x / s) @ (s * W)        s_j = max|x_j| ** alpha / max|W_j| ** (1 - alpha)

is the same product with smaller extremes (Xiao et al. 2023, "SmoothQuant: Accurate and Efficient
Post-Training Quantization for Large Language Models", equations 3 and 4). The division costs
nothing where it can be folded into what makes x: the weight of a norm, or the columns of the
projection that a gate is multiplied with.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from quantize.arrays import Array, Floats, Ints
from quantize.children import counted
from quantize.onnx.graphfile import (
    EMBEDDING,
    NAME,
    Constants,
    DataFile,
    Inserter,
    data_file,
    open_session,
    step_feeds,
)
from quantize.onnx.rounding import round_channels
from runtimes.errors import ModelError
from runtimes.models.modelfile import GENAI_CONFIG, read_json

_ALPHA = 0.5  # the paper's choice for most models: both sides become equally hard
_WINDOW, _WINDOWS = 512, 32  # tokens run at a time, and how many times
_FLOOR = 1e-5  # the least |x| and |W| that count, so that a dead channel has a factor
# Which input of a norm is its weight; what follows it, if anything, is its bias.
_NORMS = {
    "SimplifiedLayerNormalization": 1,
    "LayerNormalization": 1,
    "SkipSimplifiedLayerNormalization": 2,
    "SkipLayerNormalization": 2,
}


@dataclass
class Smoothing:
    """Factors by node name: ``makers`` divide a norm's weight or a product's output channels,
    ``readers`` multiply a product's input channels. Empty: nothing is smoothed."""

    makers: dict[str, Floats] = field(default_factory=dict)
    readers: dict[str, Floats] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def scaled(self, name: str, weight: Array) -> Array:
        """The weight [inputs, outputs] of the product ``name`` with its factors."""
        if name in self.readers:
            weight = weight * self.readers[name][:, None]
        if name in self.makers:
            weight = weight / self.makers[name]
        return weight

    def fold_norms(self, graph: Any, file: DataFile) -> None:
        """Divide the norms' weights and biases in ``graph``."""
        for node in graph:
            if node.op_type in _NORMS and node.name in self.makers:
                for value in _norm_constants(node):
                    divided = value.const_value.numpy() / self.makers[node.name]
                    value.const_value = file.tensor(value.name, divided.astype(np.float32))


@dataclass(frozen=True, slots=True)
class _Site:
    """An activation that can be smoothed: what makes it, and the products that read it."""

    activation: Any
    maker: Any
    readers: tuple[Any, ...]


def measure_smoothing(fp32: Path, calibration: Path) -> Smoothing:
    """Factors for the float graph in ``fp32`` from the text ``calibration``.

    Runs up to 16384 tokens through the graph. Raises ModelError for a text without tokens, or a
    graph with inputs that are not known.
    """
    model = ir.load(fp32 / NAME)
    sites = list(_sites(model.graph))
    if not sites:
        return Smoothing(notes=["nothing in this graph can be smoothed"])
    most = _run(fp32, model, sites, _windows(fp32, calibration))
    smoothing = Smoothing()
    for site, x in zip(sites, most, strict=True):
        weights = [np.abs(node.inputs[1].const_value.numpy()).max(axis=1) for node in site.readers]
        w = np.maximum(np.maximum.reduce(weights), _FLOOR)
        factor = (np.maximum(x, _FLOOR) ** _ALPHA / w ** (1 - _ALPHA)).astype(np.float32)
        smoothing.makers[site.maker.name] = factor
        smoothing.readers |= {node.name: factor for node in site.readers}
    smoothing.notes.append(f"activations smoothed with alpha {_ALPHA:g} from {calibration.name}")
    return smoothing


def _sites(graph: Any) -> Iterator[_Site]:
    for node in graph:
        value, maker = node.outputs[0], None
        if node.op_type in _NORMS:
            constants = _norm_constants(node)
            if all(c.const_value is not None and len(c.uses()) == 1 for c in constants):
                maker = node
        elif node.op_type == "Mul":
            maker = _gated(node)
        readers = tuple(use.node for use in value.uses())
        plain = all(use.idx == 0 for use in value.uses()) and not value.is_graph_output()
        if maker is not None and readers and plain and all(map(_is_product, readers)):
            yield _Site(value, maker, readers)


def _gated(node: Any) -> Any | None:
    """The product that makes one factor of ``node`` and nothing else: a gate's other half."""
    makers = (v.producer() for v in node.inputs if v is not None and len(v.uses()) == 1)
    return next((maker for maker in makers if maker is not None and _is_product(maker)), None)


def product_weight(node: Any) -> Any | None:
    """The constant matrix [inputs, outputs] of a product, or None for another node."""
    if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx"):
        return None
    value = node.inputs[1]
    constant = value is not None and value.const_value is not None and value.is_initializer()
    return value if constant and len(value.shape) == 2 else None


def _is_product(node: Any) -> bool:
    """Whether ``node`` multiplies by a constant that no other node uses."""
    weight = product_weight(node)
    return weight is not None and len(weight.uses()) == 1


def _norm_constants(node: Any) -> list[Any]:
    first = _NORMS[node.op_type]
    # A Skip norm's last input is the bias of what is added before: not its own.
    last = first + 1 if "Simplified" in node.op_type else first + 2
    return [value for value in node.inputs[first:last] if value is not None]


def _windows(folder: Path, text: Path) -> list[Ints]:
    """The text's tokens in pieces [1, count]."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    ids = tokenizer.encode(text.read_text(encoding="utf-8", errors="replace")).ids
    if not ids:
        raise ModelError(f"{text} has no text to calibrate with")
    starts = range(0, min(len(ids), _WINDOW * _WINDOWS), _WINDOW)
    return [np.array([ids[start : start + _WINDOW]], np.int64) for start in starts]


def _run(folder: Path, model: Any, sites: Sequence[_Site], windows: Sequence[Ints]) -> list[Floats]:
    """The largest |x| of each channel of each site over all windows."""
    decoder = read_json(folder / GENAI_CONFIG)["model"]["decoder"]
    axes = ir.node("Constant", [], {"value": ir.tensor(np.array([0, 1], np.int64))})
    model.graph.append(axes)
    names = [f"smooth.{number}" for number in range(len(sites))]
    for name, site in zip(names, sites, strict=True):
        size = ir.node("Abs", [site.activation])
        most = ir.node("ReduceMax", [size.outputs[0], axes.outputs[0]], {"keepdims": 0})
        most.outputs[0].name, most.outputs[0].type = name, ir.TensorType(ir.DataType.FLOAT)
        model.graph.extend([size, most])
        model.graph.outputs.append(most.outputs[0])
    probe = folder / "probe.onnx"  # beside the data file, which it shares
    ir.save(model, probe)
    try:
        session = open_session(str(probe))
        best: list[Any] = [0.0] * len(sites)
        for ids in counted(windows, "windows"):
            found = session.run(names, step_feeds(session, decoder, ids))
            best = list(map(np.maximum, best, found))
        return best
    finally:
        probe.unlink()


_ZERO = 128  # activations are stored unsigned
_MOST = 127.0
_TINY = 1e-30  # the scale of a row of zeros


def quantize_w8a8(
    fp32: Path,
    out: Path,
    calibration: Path | None = None,
    name: str = NAME,
) -> list[str]:
    """Rewrite the ONNX folder ``fp32`` into the folder ``out``; what the user should know.

    The graph is the file ``name`` there. A folder that exists already keeps its files, and shares
    equal constants of its graph. With ``calibration``, a text, activations are smoothed before they
    are rounded. Needs memory for a few of the largest matrices. Raises ModelError for a graph
    without constant matrix products.
    """
    smoothing = measure_smoothing(fp32, calibration) if calibration else Smoothing()
    beside = out.exists()
    if not beside:
        out.mkdir()
        for path in fp32.iterdir():
            if path.is_file() and path.name not in (NAME, f"{NAME}.data"):
                shutil.copy2(path, out / path.name)
    model = ir.load(fp32 / NAME)
    products = [node for node in model.graph if product_weight(node) is not None]
    if not products:
        raise ModelError(f"{fp32 / NAME} has no matrix product with a constant to rewrite")
    there = ir.load(out / NAME).graph.initializers if beside else {}
    with data_file(model, out / name, there) as file:
        rewrite = Rewrite(model.graph, file.initializer, smoothing)
        smoothing.fold_norms(model.graph, file)
        for node in counted(products, "matrices"):
            rewrite.product(node)
        shrunk = rewrite.shrink_table()
    notes = [f"{len(products)} matrix products with 8-bit weights and activations"]
    return [*notes, *smoothing.notes, *shrunk]


@dataclass(frozen=True, slots=True)
class _Rows:
    """An activation as rows: codes [rows, inputs], scale [rows, 1], its leading dimensions."""

    codes: Any
    scale: Any
    leading: Any


@dataclass
class Rewrite:
    """The graph on its way. ``activations`` and ``matrices`` (codes and scales) have what is in
    8 bits already, by the names of the float values."""

    graph: Any
    add: Constants
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
        scale = self.add(f"{weight.name}.scales", scales)
        table = _table_of(weight)
        if table is None:
            return self.add(f"{weight.name}.codes", codes.T), scale
        stored = self.add(f"{weight.name}.codes", codes)
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
            stored = self.add(f"{table.name}.codes", codes)
            scale = self.add(f"{table.name}.scales", scales)
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
    uses = turns[0].outputs[0].uses() if len(turns) == 1 else []
    return turns[0] if len(uses) == 1 and uses[0].node.op_type == "Gather" else None
