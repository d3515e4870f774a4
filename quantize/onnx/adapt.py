"""What a built graph gets that its maker does not give it: logits of the positions that are asked
for. Only child processes call what is here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from quantize.onnx.graphfile import NAME, Inserter, add_constant, save_graph
from runtimes.onnx.graph_file import LOGITS_FROM, PRUNED

EMBEDDING = "/model/embed_tokens/Gather"  # the builder's names
HEAD = "/lm_head/MatMul"
_END = int(np.iinfo(np.int64).max)


def adapt(folder: Path, metadata: Mapping[str, str]) -> None:
    """Rewrite the builder's graph in ``folder``, which gets this ``metadata``."""
    model = ir.load(folder / NAME)
    select_rows(model.graph)
    model.metadata_props.update(metadata)
    save_graph(model, folder / NAME, data=False)


def select_rows(graph: Any) -> None:
    """Let the caller of ``graph`` (onnx_ir) choose after which positions it wants logits.

    Generation reads those of the last position only, and computing a prompt's others takes a large
    part of its time. Measuring and checking drafts need all of them. So the output layer reads the
    hidden states [batch, sequence, hidden] from position `LOGITS_FROM` on: a constant -1 that a
    session may override. Whoever does not know of it (onnxruntime-genai) gets the last position.
    Graphs whose output layer is not found are left alone.
    """
    head = next((node for node in graph if node.name.startswith(HEAD)), None)
    if head is None:
        return
    hidden = head.inputs[0]
    pruning = []  # the last position, as the builder picks it
    while (node := hidden.producer()) is not None and node.name.startswith(PRUNED):
        pruning.append(node)
        hidden = node.inputs[0]
    start = add_constant(graph, LOGITS_FROM, np.array([-1], np.int64))
    new = Inserter(graph, head, f"{PRUNED}/")
    # Nodes, since shape inference does not read constants from the data file.
    end = new.add("Constant", "End", value_ints=[_END])
    axis = new.add("Constant", "Axis", value_ints=[1])
    rows = new.add("Slice", "Slice", hidden, start, end, axis)
    rows.type, rows.shape = hidden.type, hidden.shape
    head.replace_input_with(0, rows)
    for node in pruning:
        index = node.inputs[1]
        graph.remove(node, safe=True)
        if index.is_initializer() and not index.uses():
            graph.initializers.pop(str(index.name))
    graph.inputs.append(start)  # both an input and a constant: one that may be overridden
    logits = next(value for value in graph.outputs if value.name == "logits")
    for value in (rows, *head.outputs, logits):
        if value.shape is not None:
            # What comes without an override: onnxruntime-genai makes room by what is declared.
            count = 1 if value is logits else "logits_length"
            value.shape = ir.Shape([value.shape[0], count, value.shape[2]])
