"""What the recurrent layers of a GGUF file keep of a whole sequence: Mamba, RWKV and their hybrids.

Keys and rules as the llama.cpp of llama-cpp-python 0.3.36 reads them (``llama_hparams::n_embd_r``,
``n_embd_s``, ``is_recr_impl`` in ``src/models/*.cpp``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# All layers keep a state.
_ALL = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "falcon-h1"}
# Every fourth layer attends unless the file says otherwise; the others keep a state.
_PERIODIC = {"qwen3next", "qwen35", "qwen35moe"}
# A layer keeps a state if it has no heads of keys and values.
_BY_HEADS = {
    "bailingmoe3",
    "glm5-next",
    "granitehybrid",
    "jamba",
    "kimi-k3",
    "kimi-linear",
    "lfm2",
    "lfm2moe",
    "plamo2",
}
# The same, where a layer may also be a feed-forward block alone.
_BY_HEADS_AND_WIDTH = {"nemotron_h", "nemotron_h_moe"}
_PERIOD = 4


@dataclass(frozen=True, slots=True)
class StateShape:
    """The recurrent layers."""

    layers: int
    floats: int  # of state for a slot, in each layer
    # The width of the recurrence's input and of what is convolved before it; 0 for other
    # recurrences than Mamba's and those like it.
    inner: int = 0
    convolved: int = 0


def recurrent_layers(arch: str, metadata: Mapping[str, Any], heads: list[int]) -> list[bool]:
    """Which of the layers keep a state; ``heads`` are their heads of keys and values."""
    count = len(heads)
    if arch in _ALL:
        return [True] * count
    if arch in _PERIODIC:
        said = metadata.get(f"{arch}.attention.recurrent_layers")
        if isinstance(said, list):
            return [bool(x) for x in said[:count]] + [False] * (count - len(said))
        period = int(metadata.get(f"{arch}.full_attention_interval", _PERIOD)) or _PERIOD
        own = count - int(metadata.get(f"{arch}.nextn_predict_layers", 0))
        return [i < own and (i + 1) % period != 0 for i in range(count)]
    if arch in _BY_HEADS:
        return [n == 0 for n in heads]
    if arch in _BY_HEADS_AND_WIDTH:
        said = metadata.get(f"{arch}.feed_forward_length", 0)
        widths = said if isinstance(said, list) else [said] * count
        return [n == 0 and not width for n, width in zip(heads, widths, strict=False)]
    return [False] * count


def state_shape(arch: str, metadata: Mapping[str, Any], recurrent: list[bool]) -> StateShape | None:
    """Read the shape from a file's metadata; None where no layer keeps a state."""
    layers = sum(recurrent)
    if not layers:
        return None

    def number(key: str, default: int = 0) -> int:
        value = metadata.get(f"{arch}.{key}", default)
        return int(max(value)) if isinstance(value, list) else int(value)

    hidden, heads = number("embedding_length"), number("attention.head_count")
    kernel = number("ssm.conv_kernel")
    if wkv := number("wkv.head_size"):
        return StateShape(layers, hidden * (number("token_shift_count", 2) + wkv))
    if cells := number("shortconv.l_cache"):
        return StateShape(layers, hidden * (cells - 1))
    if head := number("kda.head_dim"):
        return StateShape(layers, heads * head * (3 * ((kernel or 4) - 1) + head))
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    convolved = inner + 2 * number("ssm.group_count") * state
    floats = max(kernel - 1, 0) * convolved + state * inner
    return StateShape(layers, floats, inner, convolved)
