"""Memory estimate for llama.cpp from a GGUF file's header alone.

The terms follow llama-cpp-python 0.3.36's llama.cpp and were checked against its own `no_alloc`
loads (which report the same buffer sizes without allocating) for nine shapes from 135M to 8B, with
1 to 32 slots, batches of 32 to 2048 tokens and both cache layouts.
"""

from dataclasses import dataclass
from math import prod

from runtimes.backend import MemoryEstimate, StepCost
from runtimes.machine.selftest import remembered
from runtimes.models.gguf import read_parts
from runtimes.models.modelfile import ModelFile
from runtimes.settings import KvType, RunnerSettings, kv_bits, outputs_at_once

_CELL_BLOCK = 256  # llama.cpp rounds the length of a cache up to this
_MASK_BYTES = {True: 2, False: 4}  # flash attention's is f16
_FLOAT = 4
_QUANTIZED_ACTIVATION = 34 / 32

# The vocabulary as llama_vocab keeps it: two tables of strings, a hash map, and the pieces.
# Measured with 150,000 tokens, with and without merges.
_TOKEN_BYTES, _MERGE_BYTES = 185, 125
# What llama_kv_cells (llama-kv-cells.h) keeps of a cell: position, shift, extension and the bits of
# LLAMA_MAX_SEQ sequences; of a used one also a node in each of two sets. A cache has a set for each
# sequence that there might be.
_CELL_BYTES = 4 + 4 + 8 + 256 // 8 + 2 * 48
_CACHE_BYTES = 256 * 48
_SAVED_CELL_BYTES = 12  # position and sequence, in a saved state

# Graphs, thread pool, and the library's own code that a step touches.
_RUNTIME_BYTES = 5 * 2**20

# Of a reproducible engine: rows of the largest pass that is tried when a file is loaded, and the
# steps in slots. Further slots cost memory, but fill the smallest passes without other waste.
MOST_PROBED = 32
_GROUP = 4


# Names of tensors: how those of the output layer begin, and the table of the embeddings.
OUTPUT, EMBEDDINGS = "output", "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Cache:
    """Caches of a context, with steps of up to ``batch`` tokens."""

    slots: int
    number: int  # of caches: one for all slots, or one for each
    length: int  # tokens that each of them is made for
    batch: int
    outputs: int  # rows of logits that there may be
    flash: bool = True  # attention without all scores of a pass in memory at once


def estimate(model: ModelFile, settings: RunnerSettings) -> MemoryEstimate:
    """Everything.

    Weights are the file's size, mapped or repacked: with extra buffers llama.cpp copies some
    tensors into another layout of the same size, and steps no longer read the pages of the file
    that they came from. Those stay in the process's resident size until the kernel needs them for
    something else; they are not counted.
    """
    cache = cache_of(model, settings)
    # Which token of which slot lies in which cell, all of them used.
    tables = cache.number * (sum(_cells(model, cache)) * _CELL_BYTES + _CACHE_BYTES)
    # Where llama.cpp is to choose tokens, whether it does or not: a row of logits, of probabilities
    # and of token ids for each slot, and a copy of the logits.
    top_k = 4 * _FLOAT * cache.slots * model.vocab_size if settings.device_sampling else 0
    # The graph's buffer, a row of logits for each slot that is copied out of it, and the work space
    # of the kernels, which is mostly the widest activation in 8 bits.
    wide = max(model.feed_forward, model.heads * model.head_dim, model.hidden)
    kernels = _FLOAT * cache.outputs * model.vocab_size
    kernels += int(_QUANTIZED_ACTIVATION * cache.batch * wide)
    vocabulary = _TOKEN_BYTES * model.vocab_size + _MERGE_BYTES * model.merges
    return MemoryEstimate(
        model.nbytes,
        kv_bytes(model, cache, settings.kv_type) + tables,
        graph_bytes(model, cache) + kernels + top_k,
        vocabulary + _RUNTIME_BYTES,
        checkpoint_bytes(model, cache, settings.kv_type),
    )


def step_cost(model: ModelFile) -> StepCost | None:
    """Without an output matrix of its own, a model has the table of the embeddings for one."""
    tensors = read_parts(model.path)[0].tensors
    matrices = [one for one in tensors if len(one.shape) > 1]
    if any(len(one.shape) > 2 and one.shape[2] > 1 for one in matrices):  # experts
        return None
    head = f"{OUTPUT}.weight"
    own = any(one.name == head for one in matrices)
    table = sum(one.nbytes for one in matrices if own and one.name == EMBEDDINGS)
    names = {one.name: prod(one.shape) for one in matrices if one.name not in (EMBEDDINGS, head)}
    output = model.vocab_size * model.hidden
    return StepCost(sum(one.nbytes for one in tensors) - table, sum(names.values()), output)


def cache_of(model: ModelFile, settings: RunnerSettings) -> Cache:
    """Return the sizes of the context that the runner asks llama.cpp for."""
    slots, context = settings.slots, settings.context or model.context_length
    if model.encodes:  # a text goes in whole
        return Cache(1, 1, context, context, outputs=1)
    if settings.reproducible:
        slots = sequences(slots)
        outputs = outputs_at_once(settings, slots)
        return Cache(slots, slots, context + MOST_PROBED, max(settings.batch, outputs), outputs)
    number, length = slots, context
    if settings.unified_kv:
        number, length = 1, settings.kv_tokens or slots * context
    outputs = outputs_at_once(settings, slots)
    return Cache(slots, number, length, settings.batch, outputs, _flash_attention(settings))


def _flash_attention(settings: RunnerSettings) -> bool:
    """Whether attention keeps no scores: as ``load_runner`` would choose it on the processor."""
    if settings.flash_attention != "auto" or settings.kv_type != "f16":
        return settings.flash_attention != "off"
    health = remembered("llamacpp")
    return health is None or health.flash_attention


def sequences(slots: int) -> int:
    """llama.cpp's sequences for so many slots."""
    return slots if slots <= 2 else -(-slots // _GROUP) * _GROUP


def kv_bytes(model: ModelFile, cache: Cache, kv_type: KvType) -> int:
    """Every cell of every slot; all are written when the context is made.

    Layers with a sliding window keep ``window`` cells and those of the batch that is going in
    (``llama_kv_cache_iswa``), in one cache for all slots or in one for each. Recurrent layers keep
    one state a slot, in floats whatever ``kv_type`` is, however long the context.
    """
    full, windowed = _cells(model, cache)
    elements = full * model.kv_elements + windowed * model.window_elements
    states = cache.slots * model.state.nbytes if model.state else 0
    return int(elements * cache.number * kv_bits(kv_type) / 8) + states


def checkpoint_bytes(model: ModelFile, cache: Cache, kv_type: KvType) -> int:
    """A slot's recurrent states and the cells of its windows; 0 where there are neither."""
    cells = min(model.sliding_window or 0, cache.length) if model.window_elements else 0
    window = model.window_elements * kv_bits(kv_type) / 8 + _SAVED_CELL_BYTES
    states = model.state.nbytes if model.state else 0
    return int(cells * window) + states


def graph_bytes(model: ModelFile, cache: Cache) -> int:
    """Estimate llama.cpp's compute buffer: activations of the largest batch, and masks.

    ggml-alloc reuses what is dead, so the peak is that of one place in the graph, in floats per
    token: the feed-forward block, 3 feed_forward + 3 hidden + max(hidden, heads x head_dim); the
    attention block, 2 heads x head_dim + 2 kv + 2 hidden; or, after the last layer, rows of logits
    beside the hidden states. A recurrent layer has inner + 4 convolved + 3 hidden, and a state for
    each slot. The mask lives through all layers: a half for each token and cell, and once more
    where some layers have a window. Without flash attention it is of floats, and the attention
    block has a score for each token, head and cell as well; up to 9 MiB stay unused between places.
    """
    batch = cache.batch
    query, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    outputs = min(batch, cache.outputs)
    feed_forward = batch * (3 * model.feed_forward + 3 * model.hidden + max(model.hidden, query))
    attention = batch * 2 * (query + kv + model.hidden)
    if not cache.flash:
        attention += batch * model.heads * max(_cells(model, cache))
    logits = outputs * (model.vocab_size + model.hidden) + batch * model.hidden
    cells = sum(_cells(model, cache))
    mask = _MASK_BYTES[cache.flash] * batch * cells
    recurrence = 0
    if state := model.state:
        recurrence = batch * (state.inner + 4 * state.convolved + 3 * model.hidden)
        recurrence += outputs * state.floats
    return max(_FLOAT * max(feed_forward, attention, recurrence) + mask, _FLOAT * logits)


def _cells(model: ModelFile, cache: Cache) -> tuple[int, int]:
    """The length of one cache: of layers that keep everything, and of those with a window."""
    if not (model.kv_elements or model.window_elements):  # recurrent layers alone
        return 0, 0
    full = -(-cache.length // _CELL_BLOCK) * _CELL_BLOCK
    if not (model.window_elements and model.sliding_window):
        return full, 0
    windows = model.sliding_window * (cache.slots // cache.number)
    return full, -(-min(full, windows + cache.batch) // _CELL_BLOCK) * _CELL_BLOCK
