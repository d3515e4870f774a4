"""Small graphs, and what ONNX Runtime computes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
Side = int | str


def graph_of(
    nodes: Sequence[onnx.NodeProto],
    given: tuple[str, int, list[Side]],
    wanted: tuple[str, int, list[Side]],
    constants: Mapping[str, Array],
) -> onnx.ModelProto:
    """One input and one output, each by its name, type and sides."""
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(*given)],
        [helper.make_tensor_value_info(*wanted)],
        [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def computed(model: onnx.ModelProto, options: ort.SessionOptions | None = None, **given: Array):
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, given)[0])
