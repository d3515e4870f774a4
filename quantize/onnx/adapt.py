"""What a built graph gets that its maker does not give it: an embedding table in 8 bits, and logits
of the positions that are asked for. Only child processes call what is here."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantize.onnx.graphfile import NAME, Inserter, add_constant, save_graph
from runtimes.onnx.graph_file import LOGITS_FROM, PRUNED

EMBEDDING = "/model/embed_tokens/Gather"  # the builder's names
HEAD = "/lm_head/MatMul"
_BLOCK = 32
_ZERO = 128  # both MatMulNBits and GatherBlockQuantized store 8-bit weights as unsigned
_END = int(np.iinfo(np.int64).max)


def adapt(folder: Path, *, shrink: bool, tied: bool) -> list[str]:
    """Rewrite the builder's graph in ``folder``, with `shrink_embedding` if asked to ``shrink``;
    returns what the user should know."""
    model = ir.load(folder / NAME)
    notes = shrink_embedding(model.graph, tied=tied) if shrink else []
    select_rows(model.graph)
    save_graph(model, folder / NAME, data=bool(notes))
    return notes


def shrink_embedding(graph: Any, *, tied: bool) -> list[str]:
    """Replace the float table of ``graph`` (onnx_ir); returns what the user should know.

    The builder shares or quantizes the table only where 4-bit recipes tie it to the output layer;
    in every other build it stays in 32 bits, often the largest part of the file. With ``tied``
    embeddings the 8-bit weights of the output layer serve as the table; otherwise the table is
    rounded in blocks of 32. Graphs without a float table are left alone.
    """
    gather = next((node for node in graph if node.name == EMBEDDING), None)
    table = gather.inputs[0] if gather is not None else None
    if gather is None or table is None or table.const_value is None or table.shape is None:
        return []
    rows, columns = (int(size) for size in table.shape.numpy())
    if columns % _BLOCK:
        return []
    new = Inserter(graph, gather, "/model/embed_tokens/")
    head = _output_layer(graph, rows, columns) if tied else None
    if head is not None:
        note = "the embedding table shares the 8-bit weights of the output layer"
        # In the graph, not in the data file: shape inference wants to see it.
        shape = new.add("Constant", "GatherShape", value_ints=[rows, columns])
        codes, scale = new.add("Reshape", "Reshape", head.inputs[1], shape), head.inputs[2]
    else:
        note = "the embedding table is stored in 8 bits"
        rounded, scales = _round(table.const_value.numpy())
        codes = add_constant(graph, "model.embed_tokens.weight_Q8", rounded)
        scale = add_constant(graph, "model.embed_tokens.weight_scales", scales)
    zeros = np.full((rows, columns // _BLOCK), _ZERO, np.uint8)
    zero = add_constant(graph, "embed_tokens.zero_points", zeros)
    kind = "GatherBlockQuantized"
    settings = {"bits": 8, "block_size": _BLOCK, "gather_axis": 0, "quantize_axis": 1}
    inputs = (codes, gather.inputs[1], scale, zero)
    new.replace_by(new.add(kind, kind, *inputs, domain="com.microsoft", **settings))
    graph.initializers.pop(str(table.name))
    return [note]


def _output_layer(graph: Any, rows: int, columns: int) -> Any | None:
    """An 8-bit output layer over the same matrix, without zero points."""
    wanted = {"N": rows, "K": columns, "bits": 8, "block_size": _BLOCK}
    for node in graph:
        if node.op_type == "MatMulNBits" and node.name.startswith("/lm_head/"):
            settings = {name: attribute.as_int() for name, attribute in node.attributes.items()}
            plain = len(node.inputs) == 3 or node.inputs[3] is None
            if wanted.items() <= settings.items() and plain:
                return node
    return None


def _round(table: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Symmetric rounding to the nearest of 255 steps in each block of 32 weights."""
    blocks = table.astype(np.float32).reshape(table.shape[0], -1, _BLOCK)
    scale = np.abs(blocks).max(axis=2) / 127
    safe = np.where(scale == 0, 1, scale)[..., None]
    codes = (np.rint(blocks / safe) + _ZERO).astype(np.uint8)
    return codes.reshape(table.shape), scale.astype(np.float32)


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
