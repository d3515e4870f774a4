"""Small graphs that move keys, values and logits on a device: ONNX Runtime's Python package has no
other way to allocate there, or to copy a tensor."""

import struct

from runtimes.onnx.small_graph import (
    FLOAT,
    FLOAT16,
    INT32,
    INT64,
    MICROSOFT,
    constant,
    integer,
    model,
    node,
    value_info,
)

_ELEMENTS = {2: FLOAT16, 4: FLOAT}  # by their bytes


def _whole(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def zeros(nbytes: int = 4) -> bytes:
    """``made`` is zeros of ``shape`` [4], with elements of ``nbytes``."""
    element = _ELEMENTS[nbytes]
    return model(
        [node("Expand", ("zero", "shape"), "made")],
        [value_info("shape", INT64, 4)],
        [value_info("made", element, "a", "b", "c", "d")],
        [constant("zero", element, 1, bytes(nbytes))],
    )


def copy(tensors: int, nbytes: int) -> bytes:
    """``to.N`` has the first ``tokens`` [1] of ``from.N`` [1, heads, context, size]."""
    element, names = _ELEMENTS[nbytes], range(tensors)
    return model(
        [node("Slice", (f"from.{n}", "zero", "tokens", "axis"), f"to.{n}") for n in names],
        [
            value_info("tokens", INT64, 1),
            *(value_info(f"from.{n}", element, 1, f"h{n}", "c", f"d{n}") for n in names),
        ],
        [value_info(f"to.{n}", element, 1, f"h{n}", "t", f"d{n}") for n in names],
        [constant("zero", INT64, 1, _whole(0)), constant("axis", INT64, 1, _whole(2))],
    )


def last(vocab_size: int, nbytes: int) -> bytes:
    """``last`` is ``logits`` [1, n, vocab] from ``first`` [1] on, which may count from the end."""
    element = _ELEMENTS[nbytes]
    return model(
        [node("Slice", ("logits", "first", "end", "axis"), "last")],
        [value_info("logits", element, 1, "n", vocab_size), value_info("first", INT64, 1)],
        [value_info("last", element, 1, "m", vocab_size)],
        [constant("end", INT64, 1, _whole(2**62)), constant("axis", INT64, 1, _whole(1))],
    )


def attention(heads: int, kv_heads: int, size: int, nbytes: int) -> bytes:
    """``mixed`` [1, n, heads * size] is the attention of a prompt of n tokens to itself."""
    element = _ELEMENTS[nbytes]
    made = ("mixed", "present.key", "present.value")
    widths = {"query": heads * size, "key": kv_heads * size, "value": kv_heads * size}
    attributes = integer("num_heads", heads) + integer("kv_num_heads", kv_heads)
    inputs = (*widths, "", "", "before", "all")
    return model(
        [node("GroupQueryAttention", inputs, made, attributes, MICROSOFT)],
        [
            *(value_info(name, element, 1, "n", width) for name, width in widths.items()),
            value_info("before", INT32, 1),
            value_info("all", INT32, 1),
        ],
        [
            value_info("mixed", element, 1, "n", heads * size),
            *(value_info(name, element, 1, kv_heads, "n", size) for name in made[1:]),
        ],
    )
