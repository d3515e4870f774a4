"""SmoothQuant: let weights take over a part of what makes activations hard to round.

A few input channels of a matrix product are often far larger than the others, and a row's one scale
must fit them all. With a factor for each channel,

    y = (x / s) @ (s * W)        s_j = max|x_j| ** alpha / max|W_j| ** (1 - alpha)

is the same product with smaller extremes (Xiao et al. 2023, "SmoothQuant: Accurate and Efficient
Post-Training Quantization for Large Language Models", equations 3 and 4). The division costs
nothing where it can be folded into what makes x: the weight of a norm, or the columns of the
projection that a gate is multiplied with.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantize.children import report_progress
from quantize.onnx.graphfile import NAME, DataFile, step_feeds
from runtimes.errors import ModelError
from runtimes.models.modelfile import GENAI_CONFIG, read_json

Floats = npt.NDArray[np.float32]

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


@dataclass(slots=True)
class Smoothing:
    """Factors by node name: ``makers`` divide a norm's weight or a product's output channels,
    ``readers`` multiply a product's input channels. Empty: nothing is smoothed."""

    makers: dict[str, Floats] = field(default_factory=dict)
    readers: dict[str, Floats] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def scaled(self, name: str, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
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
    for value in node.inputs:
        maker = value.producer() if value is not None else None
        if maker is not None and _is_product(maker) and len(value.uses()) == 1:
            return maker
    return None


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


def _windows(folder: Path, text: Path) -> list[npt.NDArray[np.int64]]:
    """The text's tokens in pieces [1, count]."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    ids = tokenizer.encode(text.read_text(encoding="utf-8", errors="replace")).ids
    if not ids:
        raise ModelError(f"{text} has no text to calibrate with")
    starts = range(0, min(len(ids), _WINDOW * _WINDOWS), _WINDOW)
    return [np.array([ids[start : start + _WINDOW]], np.int64) for start in starts]


def _run(
    folder: Path, model: Any, sites: Sequence[_Site], windows: Sequence[npt.NDArray[np.int64]]
) -> list[Floats]:
    """The largest |x| of each channel of each site over all windows."""
    import onnxruntime as ort

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
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(str(probe), options, providers=["CPUExecutionProvider"])
        best: list[Any] = [0.0] * len(sites)
        for done, ids in enumerate(windows):
            report_progress(done, len(windows), "windows")
            best = list(
                map(np.maximum, best, session.run(names, step_feeds(session, decoder, ids)))
            )
        report_progress(len(windows), len(windows), "windows")
        return best
    finally:
        probe.unlink()
