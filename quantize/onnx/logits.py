"""Let a graph's caller choose after which positions it wants logits.

Generation reads those of the last position only, and computing a prompt's others takes a large part
of its time. Measuring and checking drafts need all of them. So the output layer reads the hidden
states from position `LOGITS_FROM` on: a constant -1 that a session may override. Whoever does not
know of it (onnxruntime-genai) gets the last position.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from quantize.onnx.graphfile import Inserter, add_constant
from runtimes.onnx.graph_file import LOGITS_FROM, PRUNED

_END = int(np.iinfo(np.int64).max)


def select_rows(graph: Any) -> bool:
    """Make the positions of ``graph``'s logits a choice; False where its output layer is not found.

    ``graph`` is an onnx_ir graph whose output layer is called `/lm_head/...` and reads hidden
    states [batch, sequence, hidden], or the last position's that the builder's pruning picks.
    """
    head = next((node for node in graph if node.name.startswith("/lm_head/MatMul")), None)
    if head is None:
        return False
    hidden = head.inputs[0]
    pruning = []
    while (node := hidden.producer()) is not None and node.name.startswith(PRUNED):
        pruning.append(node)
        hidden = node.inputs[0]
    start = add_constant(graph, LOGITS_FROM, np.array([-1], np.int64))
    new = Inserter(graph, head, f"{PRUNED}/")
    # Nodes, since shape inference does not read constants from the data file.
    end = new.add("Constant", "End", value_ints=[_END])
    axis = new.add("Constant", "Axis", value_ints=[1])
    rows = new.add("Slice", "Slice", hidden, start, end, axis)
    rows.type = hidden.type
    if hidden.shape is not None:
        rows.shape = _with_rows(hidden.shape, "logits_length")
    head.replace_input_with(0, rows)
    for node in pruning:
        index = node.inputs[1]
        graph.remove(node, safe=True)
        if index.is_initializer() and not index.uses():
            graph.initializers.pop(str(index.name))
    graph.inputs.append(start)  # both an input and a constant: one that may be overridden
    logits = next(value for value in graph.outputs if value.name == "logits")
    for value in head.outputs:
        if value is not logits and value.shape is not None:
            value.shape = _with_rows(value.shape, "logits_length")
    if logits.shape is not None:
        # What comes without an override: onnxruntime-genai makes room by what is declared.
        logits.shape = _with_rows(logits.shape, 1)
    return True


def _with_rows(shape: Any, count: int | str) -> Any:
    """[batch, any, width] with another number of positions."""
    return ir.Shape([shape[0], count, shape[2]])
