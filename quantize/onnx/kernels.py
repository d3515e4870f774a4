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
import onnx_ir as ir

from quantize.arrays import Array
from quantize.onnx.graphfile import add_constant, open_session
from quantize.onnx.nbits import DOMAIN, Stored, replace_product
from quantize.onnx.w8a8 import Rewrite
from quantize.recipes import Variant, parse_variant
from runtimes.machine.cpu import available_cores

Shape = tuple[int, int]  # the length of a row, and rows

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
    floats = ir.TensorType(ir.DataType.FLOAT)
    x = ir.Value(name="x", shape=ir.Shape(["rows", width]), type=floats)
    opsets = {"": _OPSET, DOMAIN: 1}
    graph = ir.Graph([x], [], nodes=[], opset_imports=opsets, name="products")
    add = partial(add_constant, graph)
    rewrite, weights, products = Rewrite(graph, add), _weights(variant, shape), []
    for i in range(count):
        inputs = x
        if not variant.block:  # each has inputs of its own to round
            own = ir.node(
                "Mul", [x, add(f"factor{i}", np.array(1 + i, np.float32))], name=f"own{i}"
            )
            graph.append(own)
            inputs = own.outputs[0]
        weight = ir.Value(name=f"weight{i}", shape=ir.Shape(shape), type=floats)
        products.append(ir.node("MatMul", [inputs, weight], name=f"product{i}"))
    whole = ir.node("Sum", [product.outputs[0] for product in products], name="sum")
    graph.extend([*products, whole])
    graph.outputs.append(whole.outputs[0])
    for i, product in enumerate(products):
        codes, scales, *zeros = (add(f"{name}{i}", data) for name, data in weights.items())
        if variant.block:
            replace_product(graph, product, Stored(variant, height, width, codes, scales, zeros))
        else:
            rewrite.matrices[f"weight{i}"] = codes, scales
            rewrite.product(product)
    model = ir.to_proto(ir.Model(graph, ir_version=_IR))
    return open_session(model.SerializeToString(), available_cores()), count


def _weights(variant: Variant, shape: Shape) -> dict[str, Array]:
    """Codes that stand for nothing, scales and zero points, as the operators read them."""
    width, height = shape
    if not variant.block:
        codes = np.full((width, height), 1, np.int8)
        return {"codes": codes, "scales": np.full(height, _SCALE, np.float32)}
    blocks = -(-width // variant.block)
    size = variant.block * variant.bits // 8
    found: dict[str, Array] = {
        "codes": np.full((height, blocks, size), _CODES, np.uint8),
        "scales": np.full((height, blocks), _SCALE, np.float32),
    }
    if not variant.symmetric:
        found["zeros"] = np.full((height, -(-blocks * variant.bits // 8)), _CODES, np.uint8)
    return found
