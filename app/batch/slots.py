"""How many rows run together when nobody said."""

from __future__ import annotations

from runtimes.memory import estimate
from runtimes.modelfile import ModelFile

MOST = 16
# What a runner takes when no context is asked for; see runtimes.load.
_DEFAULT_CONTEXT = 4096
# What keys and values may take of the memory that the weights leave; buffers and the rest of the
# machine need some too.
_SHARE = 0.6


def default_slots(model: ModelFile, context: int | None, rows: int, free_bytes: int) -> int:
    """As many slots as there are rows, up to 16, as long as keys and values fit ``free_bytes``."""
    tokens = min(context or _DEFAULT_CONTEXT, model.context_length)
    one = estimate(model, slots=1, context=tokens)
    room = int((free_bytes - one.weights) * _SHARE)
    return max(1, min(MOST, rows, room // max(1, one.kv)))


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)
