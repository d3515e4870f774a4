"""What each layer of a GGUF file keeps of a token: grouped heads, sliding windows, shared layers.

Keys and rules as the llama.cpp of llama-cpp-python 0.3.36 reads them (``src/models/*.cpp``,
``llama_hparams::set_swa_pattern``, ``llama_model_base::load_swa_pattern``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtimes.models.gguf_state import StateShape, recurrent_layers, state_shape

# Recurrent layers that attend as well.
_BOTH = {"falcon-h1"}


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Every ``period``-th layer attends to everything: the last of them, or the first."""

    period: int  # 0: the file itself must say
    dense_first: bool = False
    window: int = 0  # what the architecture takes when the file does not say


# An architecture that is not listed attends to everything in llama.cpp, whatever its file says of a
# window (llama and phi3, for two).
_PATTERNS = {
    "afmoe": _Pattern(4),
    "cohere2": _Pattern(4),
    "cohere2moe": _Pattern(4, dense_first=True),
    "exaone-moe": _Pattern(4, window=128),
    "exaone4": _Pattern(4),
    "gemma2": _Pattern(2, window=4096),
    "gemma3": _Pattern(6),
    "gemma3n": _Pattern(5),
    "gemma4": _Pattern(0),
    "gpt-oss": _Pattern(2),
    "laguna": _Pattern(4, dense_first=True),
    "mellum": _Pattern(4),
    "olmo2": _Pattern(4),
    "plamo3": _Pattern(8),
    "smallthinker": _Pattern(4, dense_first=True, window=4096),
}


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Elements of keys and values that one token adds over all layers."""

    full: int  # of the layers that keep every token
    windowed: int  # of those that keep the last ``window`` tokens
    window: int | None
    heads: int  # the most of any layer, as is the head_dim
    head_dim: int
    state: StateShape | None = None  # what recurrent layers keep of the whole sequence


def cache_shape(arch: str, metadata: Mapping[str, Any]) -> CacheShape:
    """Read the shape from a file's metadata; what it does not say is llama.cpp's default."""

    def raw(key: str, default: Any) -> Any:
        return metadata.get(f"{arch}.attention.{key}", default)

    layers = int(metadata.get(f"{arch}.block_count", 1))
    query = _largest(raw("head_count", 1))
    heads = _per_layer(raw("head_count_kv", query), layers)
    width = _largest(metadata.get(f"{arch}.embedding_length", 0)) // max(query, 1)
    key, value = int(raw("key_length", width)), int(raw("value_length", width))
    slim_key, slim_value = (
        int(raw("key_length_swa", key)),
        int(raw("value_length_swa", value)),
    )
    if raw("key_length_mla", 0) and raw("value_length_mla", 0):
        # What is kept is the compressed token, beside its rotated part; values come out of it too.
        value = 0
    window, windowed = _windows(arch, raw, layers)
    recurrent = recurrent_layers(arch, metadata, heads)
    if arch not in _BOTH:
        heads = [0 if state else n for n, state in zip(heads, recurrent, strict=True)]
    own = layers - int(raw("shared_kv_layers", 0))  # the last ones read another layer's cache
    full = sum(heads[i] * (key + value) for i in range(own) if not windowed[i])
    narrow = sum(heads[i] * (slim_key + slim_value) for i in range(own) if windowed[i])
    state = state_shape(arch, metadata, recurrent)
    return CacheShape(full, narrow, window, max(heads), key, state)


def _windows(arch: str, raw: Any, layers: int) -> tuple[int | None, list[bool]]:
    pattern = _PATTERNS.get(arch)
    window = int(raw("sliding_window", 0)) or (pattern.window if pattern else 0)
    none: tuple[int | None, list[bool]] = (None, [False] * layers)
    if pattern is None or not window:
        return none
    said = raw("sliding_window_pattern", pattern.period)
    if isinstance(said, list):
        return window, [bool(x) for x in said[:layers]] + [False] * (layers - len(said))
    period = int(said)
    if period <= 0:
        return none
    dense = 0 if pattern.dense_first else period - 1
    return window, [layer % period != dense for layer in range(layers)]


def _per_layer(value: Any, layers: int) -> list[int]:
    values = [int(x) for x in value] if isinstance(value, list) else [int(value)] * layers
    return (values + values[-1:] * layers)[:layers]


def _largest(value: Any) -> int:
    return int(max(value)) if isinstance(value, list) else int(value)
