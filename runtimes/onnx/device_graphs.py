"""Small graphs that move keys, values, logits and adapters' matrices on a device: ONNX Runtime's
Python package has no other way to allocate there, or to copy a tensor."""

import struct

from runtimes.onnx.small_graph import (
    FLOATS,
    INT32,
    INT64,
    MICROSOFT,
    constant,
    integer,
    model,
    node,
    value_info,
)


def _whole(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def zeros(nbytes: int = 4) -> bytes:
    """``made`` is zeros of ``shape`` [4], with elements of ``nbytes``."""
    element = FLOATS[nbytes]
    return model(
        [node("Expand", ("zero", "shape"), "made")],
        [value_info("shape", INT64, 4)],
        [value_info("made", element, "a", "b", "c", "d")],
        [constant("zero", element, 1, bytes(nbytes))],
    )


def copy(tensors: int, nbytes: int) -> bytes:
    """``to.N`` has the first ``tokens`` [1] of ``from.N`` [rows, heads, context, size]."""
    element, names = FLOATS[nbytes], range(tensors)
    return model(
        [node("Slice", (f"from.{n}", "zero", "tokens", "axis"), f"to.{n}") for n in names],
        [
            value_info("tokens", INT64, 1),
            *(value_info(f"from.{n}", element, "r", f"h{n}", "c", f"d{n}") for n in names),
        ],
        [value_info(f"to.{n}", element, "r", f"h{n}", "t", f"d{n}") for n in names],
        [constant("zero", INT64, 1, _whole(0)), constant("axis", INT64, 1, _whole(2))],
    )


def same(nbytes: int) -> bytes:
    """``to`` [n, m] is what ``from`` is."""
    element, shape = FLOATS[nbytes], ("n", "m")
    made = node("Identity", ("from",), "to")
    return model([made], [value_info("from", element, *shape)], [value_info("to", element, *shape)])


def picked(vocab_size: int, nbytes: int, likeliest: int = 0) -> bytes:
    """``picked`` is those of ``logits`` [b, n, vocab] that ``rows`` [m] counts, from 0 to b * n.

    With ``likeliest`` also so many of each row's largest: ``values`` and ``ids``.
    """
    element = FLOATS[nbytes]
    nodes = [
        node("Reshape", ("logits", "flat"), "all"),
        node("Gather", ("all", "rows"), "picked"),
    ]
    outputs = [value_info("picked", element, "m", vocab_size)]
    constants = [constant("flat", INT64, 2, _whole(-1, vocab_size))]
    if likeliest:
        nodes.append(node("TopK", ("picked", "count"), ("values", "ids")))
        outputs = [
            value_info("values", element, "m", likeliest),
            value_info("ids", INT64, "m", likeliest),
        ]
        constants.append(constant("count", INT64, 1, _whole(likeliest)))
    inputs = [value_info("logits", element, "b", "n", vocab_size), value_info("rows", INT64, "m")]
    return model(nodes, inputs, outputs, constants)


def attention(heads: int, kv_heads: int, size: int, nbytes: int) -> bytes:
    """``mixed`` [rows, n, heads * size] is what n tokens of each row take from one another, and
    from what came before in ``past.key`` and ``past.value`` [rows, kv heads, context, size]."""
    element = FLOATS[nbytes]
    past, present = ("past.key", "past.value"), ("present.key", "present.value")
    widths = {"query": heads * size, "key": kv_heads * size, "value": kv_heads * size}
    attributes = integer("num_heads", heads) + integer("kv_num_heads", kv_heads)
    inputs = (*widths, *past, "before", "all")
    kept = ("rows", kv_heads, "context", size)
    return model(
        [node("GroupQueryAttention", inputs, ("mixed", *present), attributes, MICROSOFT)],
        [
            *(value_info(name, element, "rows", "n", width) for name, width in widths.items()),
            *(value_info(name, element, *kept) for name in past),
            value_info("before", INT32, "rows"),
            value_info("all", INT32, 1),
        ],
        [
            value_info("mixed", element, "rows", "n", heads * size),
            *(value_info(name, element, *kept) for name in present),
        ],
    )
