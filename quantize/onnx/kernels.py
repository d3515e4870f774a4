"""ONNX Runtime's matrix products on this processor by variant and shape, to be timed. Runs in a
child process.

A graph of nothing but products of one kind, each with weights of its own, in a session like that of
a model.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper

from quantize.onnx.graphfile import InGraph, add_constant
from quantize.onnx.w8a8 import Rewrite
from quantize.recipes import Variant, parse_variant
from runtimes.machine.cpu import available_cores

Shape = tuple[int, int]  # the length of a row, and rows

_DOMAIN = "com.microsoft"
_INT8 = 4  # accuracy_level, as in the files that are built
_CODES, _SCALE = 0x87, 0.01
_OPSET, _IR = 21, 10


@contextlib.contextmanager
def products(
    kind: str, shape: Shape, rows: int, model_bytes: int
) -> Iterator[tuple[Callable[[], object], int]]:
    """A function that multiplies ``rows`` rows of inputs by as many matrices of that shape, stored
    in that way, as a model of ``model_bytes`` has, and how many these are."""
    session, count = _products(parse_variant(kind), shape, model_bytes)
    inputs = np.random.default_rng(0).standard_normal((rows, shape[0]), np.float32)
    yield partial(session.run, None, {"x": inputs}), count


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
