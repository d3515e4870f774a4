"""How long ONNX Runtime's matrix products take on this processor, by variant and shape. Runs in a
child process.

A graph of nothing but products of one kind, each with weights of its own, in a session like that of
a model.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper

from quantize.children import report_progress
from quantize.onnx.graphfile import InGraph, add_constant
from quantize.onnx.w8a8 import Rewrite
from quantize.recipes import Variant, parse_variant
from runtimes.machine.cpu import available_cores

Shape = tuple[int, int]  # the length of a row, and rows

_MOST_BYTES = 96_000_000  # of weights: more than any cache holds, of a model that is larger
_LEAST_S = 0.1  # that a product is timed for
_LAPS = 5
_DOMAIN = "com.microsoft"
_INT8 = 4  # accuracy_level, as in the files that are built
_CODES, _SCALE = 0x87, 0.01
_OPSET, _IR = 21, 10


def kernel_seconds(
    shapes: Iterable[Shape], kinds: Iterable[str], rows: Sequence[int], model_bytes: int
) -> dict[tuple[str, Shape, int], float]:
    """Seconds of the product by a matrix stored in that way and of that shape, with so many
    ``rows`` of inputs, in a model of ``model_bytes``: how much of it the caches hold decides."""
    variants = [parse_variant(kind) for kind in kinds]
    cases = [(v, shape) for shape in shapes for v in variants if v.fitting(shape[0]) == v]
    found = {}
    for done, (variant, shape) in enumerate(cases):
        report_progress(done, len(cases), "kernels")
        products = _products(variant, shape, min(model_bytes, _MOST_BYTES))
        for count in rows:
            found[variant.name, shape, count] = _seconds(products, shape[0], count)
    report_progress(len(cases), len(cases), "kernels")
    return found


def _products(variant: Variant, shape: Shape, model_bytes: int) -> tuple[Any, int]:
    """A session with as many products as a model of that size has, and their number."""
    width, height = shape
    count = max(1, -(-model_bytes // (height * variant.row_bytes(width))))
    if not variant.block:
        return _session(_of_integers(shape, count)), count
    constants, nodes = [], []
    for i in range(count):
        names = []
        for name, data in _weights(variant, shape).items():
            names.append(f"{name}{i}")
            kind = helper.np_dtype_to_tensor_dtype(data.dtype)
            made = helper.make_tensor(names[-1], kind, data.shape, data.tobytes(), raw=True)
            constants.append(made)
        settings = {"bits": variant.bits, "block_size": variant.block, "accuracy_level": _INT8}
        nodes.append(
            helper.make_node(
                *("MatMulNBits", ["x", *names], [f"y{i}"]),
                **(settings | {"domain": _DOMAIN, "K": width, "N": height}),
            )
        )
    nodes.append(helper.make_node("Sum", [f"y{i}" for i in range(count)], ["sum"]))
    ends = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
        for name, size in (("x", width), ("sum", height))
    )
    graph = helper.make_graph(nodes, "products", [next(ends)], [next(ends)], constants)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_DOMAIN, 1)]
    return _session(helper.make_model(graph, opset_imports=opsets, ir_version=_IR)), count


def _session(model: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = available_cores()
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _of_integers(shape: Shape, count: int) -> Any:
    """Products of integers, each with inputs of its own to round."""
    width, height = shape
    floats = ir.TensorType(ir.DataType.FLOAT)
    x = ir.Value(name="x", shape=ir.Shape(["rows", width]), type=floats)
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": _OPSET}, name="products")
    rewrite, products = Rewrite(graph, InGraph(graph)), []
    codes = np.full((width, height), 1, np.int8)
    for i in range(count):
        factor = add_constant(graph, f"factor{i}", np.array(1 + i, np.float32))
        own = ir.node("Mul", [x, factor], name=f"own{i}")
        weight = ir.Value(name=f"weight{i}", shape=ir.Shape(shape), type=floats)
        stored = (
            add_constant(graph, f"{kind}{i}", data)
            for kind, data in (("codes", codes), ("scales", np.full(height, _SCALE, np.float32)))
        )
        rewrite.matrices[f"weight{i}"] = next(stored), next(stored)
        product = ir.node("MatMul", [own.outputs[0], weight], name=f"product{i}")
        graph.extend([own, product])
        products.append(product)
    whole = ir.node("Sum", [product.outputs[0] for product in products], name="sum")
    graph.append(whole)
    graph.outputs.append(whole.outputs[0])
    for product in products:
        rewrite.product(product)
    return ir.to_proto(ir.Model(graph, ir_version=_IR))


def _weights(variant: Variant, shape: Shape) -> dict[str, npt.NDArray[Any]]:
    """Codes that stand for nothing, scales and zero points, as the operator reads them."""
    width, height = shape
    blocks = -(-width // variant.block)
    codes = (height, blocks, variant.block * variant.bits // 8)
    found: dict[str, npt.NDArray[Any]] = {
        "codes": np.full(codes, _CODES, np.uint8),
        "scales": np.full((height, blocks), _SCALE, np.float32),
    }
    if not variant.symmetric:
        found["zeros"] = np.full((height, -(-blocks * variant.bits // 8)), _CODES, np.uint8)
    return found


def _seconds(products: tuple[Any, int], width: int, rows: int) -> float:
    """Seconds of one product."""
    session, count = products
    feeds = {"x": np.random.default_rng(0).standard_normal((rows, width), np.float32)}
    laps: list[float] = []
    while len(laps) < _LAPS or sum(laps) < _LEAST_S:
        began = time.perf_counter()
        session.run(None, feeds)
        laps.append(time.perf_counter() - began)
    return min(laps) / count
