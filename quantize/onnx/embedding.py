"""Runs in a child process: store a built graph's embedding table in 8 bits.

The builder shares or quantizes the table only where 4-bit recipes tie it to the output layer; in
every other build it stays in 32 bits, often the largest part of the file.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.onnx.graphfile import Inserter, add_constant

_BLOCK = 32
_ZERO = 128  # both MatMulNBits and GatherBlockQuantized store 8-bit weights as unsigned
_GATHER = "/model/embed_tokens/Gather"


def shrink_embedding(graph: Any, *, tied: bool) -> list[str]:
    """Replace the float table of ``graph`` (onnx_ir); returns what the user should know.

    With ``tied`` embeddings the 8-bit weights of the output layer serve as the table; otherwise
    the table is rounded in blocks of 32. Graphs without a float table are left alone.
    """
    gather = next((node for node in graph if node.name == _GATHER), None)
    table = gather.inputs[0] if gather is not None else None
    if gather is None or table is None or table.const_value is None or table.shape is None:
        return []
    rows, columns = (int(size) for size in table.shape.numpy())
    if columns % _BLOCK:
        return []
    shared = _output_layer(graph, rows, columns) if tied else None
    new = Inserter(graph, gather, "/model/embed_tokens/")
    if shared is not None:
        note = "the embedding table shares the 8-bit weights of the output layer"
        weight, scale = shared
        # In the graph, not in the data file: shape inference wants to see it.
        shape = new.add("Constant", "GatherShape", value_ints=[rows, columns])
        codes = new.add("Reshape", "Reshape", weight, shape)
    else:
        note = "the embedding table is stored in 8 bits"
        rounded, scales = _round(table.const_value.numpy())
        codes = add_constant(graph, "model.embed_tokens.weight_Q8", rounded)
        scale = add_constant(graph, "model.embed_tokens.weight_scales", scales)
    zero = np.full((rows, columns // _BLOCK), _ZERO, np.uint8)
    new.replace_by(
        new.add(
            "GatherBlockQuantized",
            "GatherBlockQuantized",
            *(
                codes,
                gather.inputs[1],
                scale,
                add_constant(graph, "embed_tokens.zero_points", zero),
            ),
            domain="com.microsoft",
            bits=8,
            block_size=_BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )
    )
    graph.initializers.pop(str(table.name))
    return [note]


def _output_layer(graph: Any, rows: int, columns: int) -> tuple[Any, Any] | None:
    """Weights and scales of an 8-bit output layer over the same matrix, without zero points."""
    for node in graph:
        if node.op_type == "MatMulNBits" and node.name.startswith("/lm_head/"):
            settings = {name: attribute.as_int() for name, attribute in node.attributes.items()}
            same = (settings["N"], settings["K"]) == (rows, columns)
            plain = len(node.inputs) == 3 or node.inputs[3] is None
            if settings["bits"] == 8 and settings["block_size"] == _BLOCK and same and plain:
                return node.inputs[1], node.inputs[2]
    return None


def _round(table: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Symmetric rounding to the nearest of 255 steps in each block of 32 weights."""
    blocks = table.astype(np.float32).reshape(table.shape[0], -1, _BLOCK)
    scale = np.abs(blocks).max(axis=2) / 127
    safe = np.where(scale == 0, 1, scale)[..., None]
    codes = (np.rint(blocks / safe) + _ZERO).astype(np.uint8)
    return codes.reshape(table.shape), scale.astype(np.float32)
