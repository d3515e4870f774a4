"""How many rows run together when nobody said."""

from __future__ import annotations

from runtimes.modelfile import ModelFile

MOST = 16
_DEFAULT_CONTEXT = 4096
# llama.cpp keeps keys and values as float16; an ONNX graph for the CPU as float32.
_ELEMENT_BYTES = {"llamacpp": 2.0, "onnx": 4.0}
# What the cache may take of the memory that the weights leave.
_SHARE = 0.6


def default_slots(model: ModelFile, context: int | None, rows: int, free_bytes: int) -> int:
    """As many slots as there are rows, up to 16, as long as their cache fits ``free_bytes``."""
    tokens = min(context or _DEFAULT_CONTEXT, model.context_length)
    slot_bytes = max(1, tokens * model.kv_bytes_per_token(_ELEMENT_BYTES[model.runtime]))
    room = int((free_bytes - model.nbytes) * _SHARE)
    return max(1, min(MOST, rows, room // slot_bytes))


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)
