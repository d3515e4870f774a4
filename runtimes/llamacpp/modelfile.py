"""Model description from a GGUF file's header, and the cache of each of its layers: grouped heads,
sliding windows, shared layers, recurrent ones (Mamba, RWKV and their hybrids).

Keys and rules as the llama.cpp of llama-cpp-python 0.3.36 reads them (``src/models/*.cpp``;
``set_swa_pattern``, ``n_embd_r`` and ``n_embd_s`` of ``llama_hparams``;
``llama_model_base::load_swa_pattern``).
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError, RequestError
from runtimes.models.gguf import CACHE_KEY, MOST_ELEMENTS, GgufHeader, read_parts, read_start
from runtimes.models.modelfile import ModelFile, StateShape
from runtimes.settings import KvType, kv_pair
from runtimes.untrusted import visible

_MOST_LAYERS = MOST_ELEMENTS  # no model has more; so many values by layer are read
_LONGEST_NAME = 64  # of an architecture
# All layers keep a state.
_ALL = frozenset("mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7 falcon-h1".split())
# Every fourth layer attends unless the file says otherwise; the others keep a state.
_PERIODIC = {"qwen3next", "qwen35", "qwen35moe"}
# A layer keeps a state if it has no heads of keys and values.
_BY_HEADS = frozenset(
    "bailingmoe3 glm5-next granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe plamo2".split()
)
# The same, where a layer may also be a feed-forward block alone.
_BY_HEADS_AND_WIDTH = {"nemotron_h", "nemotron_h_moe"}
# Recurrent layers that attend as well.
_BOTH = {"falcon-h1"}


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Every ``period``-th layer attends to everything: the last of them, or the first."""

    period: int  # 0: the file itself must say
    dense_first: bool
    window: int  # what the architecture takes when the file does not say


# An architecture that is not listed attends to everything in llama.cpp, whatever its file says of a
# window (llama and phi3, for two). The others, one a line: ``_Pattern``.
_LISTED = """
afmoe        4 last     0
cohere2      4 last     0
cohere2moe   4 first    0
exaone-moe   4 last   128
exaone4      4 last     0
gemma2       2 last  4096
gemma3       6 last     0
gemma3n      5 last     0
gemma4       0 last     0
gpt-oss      2 last     0
laguna       4 first    0
mellum       4 last     0
olmo2        4 last     0
plamo3       8 last     0
smallthinker 4 first 4096
"""
_PATTERNS = {
    name: _Pattern(int(period), dense == "first", int(window))
    for name, period, dense, window in map(str.split, _LISTED.strip().splitlines())
}


# Architectures of encoders whose files do not say that their attention looks ahead.
_ENCODERS = frozenset({"gemma-embedding"})


@dataclass(frozen=True, slots=True)
class _Keys:
    """Read a value under the file's architecture; what it does not say is llama.cpp's default."""

    arch: str
    header: GgufHeader

    def raw(self, key: str, default: Any = 0) -> Any:
        return self.header.value(f"{self.arch}.{key}", default)

    def number(self, key: str, default: int = 0, least: int = 0, most: int = 2**32 - 1) -> int:
        """Return the largest of a value's entries, one a layer."""
        return self.header.whole(f"{self.arch}.{key}", default, least, most)

    def by_layer(self, key: str, default: int, layers: int) -> list[int]:
        values = self.header.numbers(f"{self.arch}.{key}", default)
        return (values + values[-1:] * layers)[:layers]


def read_gguf(path: Path) -> ModelFile:
    """Describe a GGUF file; raises ModelError."""
    header, parts = read_parts(path)
    if not (header.tensors and header.text("general.architecture")):
        raise ModelError(f"{path} holds no model (no architecture or no tensors in its header)")
    return _described(header, path, sum(part.stat().st_size for part in parts), parts[1:])


def peek(start: bytes, path: Path, nbytes: int) -> ModelFile:
    """Describe a file of ``nbytes``, of which only the first are here. Its tokenizer is taken to
    have as many merges as tokens where it is cut off. Raises ModelError when they do not say."""
    header = read_start(start, str(path))
    arch = header.text("general.architecture")
    needed = [f"{arch}.{key}" for key in ("block_count", "embedding_length", "context_length")]
    needed = needed if arch else ["general.architecture"]
    if missing := [key for key in needed if header.metadata.get(key) in (None, "")]:
        raise ModelError(
            f"{path}: its first {len(start):,} bytes do not tell {visible(missing[0])}"
        )
    if not header.data_begins:
        tokens = header.array_lengths.get("tokenizer.ggml.tokens", 0)
        header.array_lengths.setdefault("tokenizer.ggml.merges", tokens)
    return _described(header, path, nbytes)


def _described(
    header: GgufHeader, path: Path, nbytes: int, further: tuple[Path, ...] = ()
) -> ModelFile:
    keys = _Keys(header.text("general.architecture") or "", header)
    number = keys.number
    if len(keys.arch) > _LONGEST_NAME:
        raise header.damaged("general.architecture", f"has {len(keys.arch):,} characters")
    layers = number("block_count", 1, 1, _MOST_LAYERS)
    hidden = number("embedding_length")
    heads = number("attention.head_count", 1)
    kv_heads = keys.by_layer("attention.head_count_kv", heads, layers)
    recurrent = _recurrent(keys, kv_heads)
    if keys.arch not in _BOTH:
        kv_heads = [0 if state else n for n, state in zip(kv_heads, recurrent, strict=True)]
    key = number("attention.key_length", hidden // max(heads, 1))
    value = number("attention.value_length", hidden // max(heads, 1))
    slim = number("attention.key_length_swa", key) + number("attention.value_length_swa", value)
    encodes = keys.raw("attention.causal", True) is False or keys.arch in _ENCODERS
    if encodes:
        kv_heads = [0] * layers  # they keep nothing of a text
    if number("attention.key_length_mla") and number("attention.value_length_mla"):
        # What is kept is the compressed token, beside its rotated part; values come out of it too.
        value = 0
    window, windowed = _windows(keys, layers)
    own = layers - number("attention.shared_kv_layers")  # the last ones read another layer's cache
    # Where nothing is said of the experts' width (Mixtral), it is the layer's own.
    feed_forward = number("feed_forward_length")
    expert = number("expert_feed_forward_length", feed_forward)
    return ModelFile(
        path=path,
        runtime="llamacpp",
        name=path.stem,
        architecture=keys.arch,
        quantization=_main_type(header),
        nbytes=nbytes,
        further=further,
        context_length=number("context_length", 2048, 1),
        layers=layers,
        heads=heads,
        kv_heads=max(kv_heads),
        head_dim=key,
        vocab_size=header.array_lengths.get("tokenizer.ggml.tokens", number("vocab_size")),
        sliding_window=number("attention.sliding_window") or window,
        chat_template=header.text("tokenizer.chat_template"),
        kv_elements=sum(kv_heads[i] * (key + value) for i in range(own) if not windowed[i]),
        window_elements=sum(kv_heads[i] * slim for i in range(own) if windowed[i]),
        hidden=hidden,
        feed_forward=max(feed_forward, number("expert_used_count") * expert),
        merges=header.array_lengths.get("tokenizer.ggml.merges", 0),
        state=_state(keys, sum(recurrent)),
        encodes=encodes,
        scores_pairs=_scores_pairs(keys, header),
        kv_type=_kv_type(header),
    )


def _kv_type(header: GgufHeader) -> KvType:
    """The types that `quantize --fits` has chosen; f16 for any other text."""
    said = str(header.metadata.get(CACHE_KEY))
    try:
        kv_pair(said)
    except RequestError:
        return "f16"
    return said


def _scores_pairs(keys: _Keys, header: GgufHeader) -> bool:
    """Whether it is a cross-encoder that llama.cpp computes as it was trained: XLM-RoBERTa's. Of
    BERT's its files lack a layer, and the second text's token type is left out."""
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    head = shapes.get("cls.output.weight")
    return (
        keys.arch == "bert"
        and header.metadata.get("tokenizer.ggml.model") == "t5"
        and header.metadata.get("tokenizer.ggml.token_type_count", 1) == 1
        and "cls.weight" in shapes
        and head is not None
        and head[1:] in ((), (1,))
    )


def _main_type(header: GgufHeader) -> str:
    """The tensor type that holds the most bytes: what the file is called after. Empty where its
    tensors are not known."""
    totals: Counter[str] = Counter()
    for tensor in header.tensors:
        totals[tensor.type_name] += tensor.nbytes
    return totals.most_common(1)[0][0] if totals else ""


def _windows(keys: _Keys, layers: int) -> tuple[int | None, list[bool]]:
    """The window, and which layers keep no more than that."""
    pattern = _PATTERNS.get(keys.arch)
    if pattern and (window := keys.number("attention.sliding_window") or pattern.window):
        said = keys.raw("attention.sliding_window_pattern", pattern.period)
        if isinstance(said, list):
            return window, _flags(said, layers)
        if period := keys.number("attention.sliding_window_pattern", pattern.period):
            dense = 0 if pattern.dense_first else period - 1
            return window, [layer % period != dense for layer in range(layers)]
    return None, [False] * layers


def _flags(said: list[Any], layers: int) -> list[bool]:
    """A flag for each layer by a file's list, which may be longer or shorter."""
    return [bool(x) for x in said[:layers]] + [False] * (layers - len(said))


def _recurrent(keys: _Keys, heads: list[int]) -> list[bool]:
    """Find the layers that keep a state; ``heads`` are their heads of keys and values."""
    count = len(heads)
    if keys.arch in _ALL:
        return [True] * count
    if keys.arch in _PERIODIC:
        said = keys.raw("attention.recurrent_layers")
        if isinstance(said, list):
            return _flags(said, count)
        period = keys.number("full_attention_interval") or 4
        own = count - keys.number("nextn_predict_layers")
        return [i < own and (i + 1) % period != 0 for i in range(count)]
    if keys.arch in _BY_HEADS:
        return [n == 0 for n in heads]
    if keys.arch in _BY_HEADS_AND_WIDTH:
        widths = keys.by_layer("feed_forward_length", 0, count)
        return [n == 0 and not width for n, width in zip(heads, widths, strict=True)]
    return [False] * count


def _state(keys: _Keys, layers: int) -> StateShape | None:
    """Return the size of the state of so many recurrent layers."""
    number = keys.number
    if not layers:
        return None
    hidden, kernel = number("embedding_length"), number("ssm.conv_kernel")
    if wkv := number("wkv.head_size"):
        return StateShape(layers, hidden * (number("token_shift_count", 2) + wkv))
    if cells := number("shortconv.l_cache"):
        return StateShape(layers, hidden * (cells - 1))
    if head := number("kda.head_dim"):
        floats = number("attention.head_count") * head * (3 * ((kernel or 4) - 1) + head)
        return StateShape(layers, floats)
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    convolved = inner + 2 * number("ssm.group_count") * state
    floats = max(kernel - 1, 0) * convolved + state * inner
    return StateShape(layers, floats, inner, convolved)
