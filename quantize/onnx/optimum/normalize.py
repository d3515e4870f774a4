"""Bring the graph that optimum exports into the form that the steps after it expect.

They are the quantizer (multiplications are MatMul by a constant, not Gemm), the embedding table and
the choice of logits (both found by the names that onnxruntime-genai's builder gives them).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.onnx.adapt import EMBEDDING, HEAD
from quantize.onnx.graphfile import Inserter, add_constant
from runtimes.errors import ModelError


def normalize(model: Any) -> bool:
    """Change ``model`` (onnx_ir) in place; whether its table and its output layer are one matrix.

    Raises ModelError when there is no output layer or no embedding table.
    """
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    graph = model.graph
    head = _output_layer(graph)
    rows = int(graph_output(graph, "logits").shape[2])
    for node in list(graph):
        if node.op_type == "Gemm":
            _split_gemm(graph, node)
        elif node.op_type == "MatMul" and node.inputs[1].const_value is None:
            weight = _constant(node.inputs[1])
            if weight is not None and weight.ndim == 2:
                name = f"{node.name}.weight"
                node.replace_input_with(1, add_constant(graph, name, weight.copy()))
    head.name = HEAD
    lookups = (node for node in graph if node.op_type == "Gather")
    table = next((node for node in lookups if _rows(node.inputs[0]) == rows), None)
    if table is None:
        raise ModelError("the exported graph has no embedding table")
    table.name = EMBEDDING
    weight, entries = _constant(head.inputs[1]), _constant(table.inputs[0])
    assert weight is not None
    assert entries is not None
    RemoveUnusedNodesPass()(model)  # what made the weights that are constants now
    return bool(weight.T.shape == entries.shape and np.array_equal(weight.T, entries))


def graph_output(graph: Any, name: str) -> Any:
    """The graph's output of that name; raises ModelError."""
    found = next((value for value in graph.outputs if value.name == name), None)
    if found is None:
        raise ModelError(f"the exported graph has no output {name!r}")
    return found


def _output_layer(graph: Any) -> Any:
    node = graph_output(graph, "logits").producer()
    while node is not None and node.op_type != "MatMul":
        # A bias, a scale or a cast between the output layer and the logits.
        node = next((v.producer() for v in node.inputs if v is not None and v.producer()), None)
    if node is None or _constant(node.inputs[1]) is None:
        raise ModelError("the exported graph has no output layer that ends in its logits")
    return node


def _split_gemm(graph: Any, node: Any) -> None:
    """A Gemm by a constant becomes a MatMul and an addition."""
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    weight = _constant(node.inputs[1])
    if weight is None or settings.get("transA", 0) or settings.get("alpha", 1.0) != 1.0:
        return
    if settings.get("transB", 0):
        weight = weight.T
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and settings.get("beta", 1.0) != 1.0:
        return
    name = node.name.removesuffix("/Gemm")
    weights = add_constant(graph, f"{name}.weight_2d", np.ascontiguousarray(weight))
    new = Inserter(graph, node, f"{name}/")
    product = new.add("MatMul", "MatMul", node.inputs[0], weights)
    product.name = f"{name}/MatMul_output_0"
    new.replace_by(product if bias is None else new.add("Add", "Add", product, bias))


def _constant(value: Any) -> npt.NDArray[Any] | None:
    """The value's content where it is known: a constant, also behind a Transpose or Identity."""
    if value.const_value is not None:
        return np.asarray(value.const_value.numpy())
    node = value.producer()
    if node is None or node.op_type not in ("Transpose", "Identity"):
        return None
    inner = _constant(node.inputs[0])
    if inner is None or node.op_type == "Identity":
        return inner
    order = node.attributes["perm"].value if "perm" in node.attributes else None
    return np.transpose(inner, order)


def _rows(value: Any) -> int:
    """Rows of a constant matrix; 0 for anything else."""
    tensor = value.const_value
    return int(tensor.shape[0]) if tensor is not None and len(tensor.shape) == 2 else 0
