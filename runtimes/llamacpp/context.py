"""Loading a file into llama.cpp, and what a context on it is like."""

import ctypes
import logging
import re
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError, OutOfMemoryError, RequestError
from runtimes.llamacpp.memory import EMBEDDINGS, OUTPUT, cache_of, graph_bytes, kv_bytes
from runtimes.llamacpp.native import chosen, devices, library, offloads, recent_errors
from runtimes.machine.selftest import ATTENTION_DEPTH, require
from runtimes.models.gguf import read_parts
from runtimes.models.memory import gib
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings, kv_pair, outputs_at_once, rope_scaling

log = logging.getLogger(__name__)

_BF16 = 30  # GGML_TYPE_BF16 of ggml.h, which the bindings do not name


def with_attention(settings: RunnerSettings) -> RunnerSettings:
    """Without flash attention where that is the faster way on the processor, and nobody has chosen.
    Raises RequestError where keys and values, or reproducible answers, cannot have what was chosen.
    """
    needed_by = f"a {settings.kv_type} KV cache" if settings.kv_type != "f16" else ""
    if settings.reproducible:
        needed_by = "reproducible answers"
    if needed_by and settings.flash_attention == "off":
        raise RequestError(
            f"{needed_by} cannot be had with flash attention off: leave one of them out"
        )
    if settings.flash_attention != "auto" or offloads(settings):
        return settings
    health = require("llamacpp")
    if health.flash_attention:
        return settings
    if not needed_by:
        return replace(settings, flash_attention="off")
    log.warning(
        "%s: it needs flash attention, which has %.2f times the speed of the other kernel behind %s"
        " tokens with this build here",
        needed_by,
        health.attention,
        f"{ATTENTION_DEPTH:,}",
    )
    return settings


def load_model(model_file: ModelFile, settings: RunnerSettings) -> Any:
    """llama.cpp's model; raises ModelError, also for one that does not continue texts, or that has
    no rotary positions where others than its own are asked for."""
    lib = library()
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0 if settings.device == "cpu" else settings.gpu_layers
    used = chosen(settings.device)  # llama.cpp copies it while it loads
    params.devices = ctypes.cast(used, ctypes.c_void_p)
    params.use_extra_bufts = settings.extra_buffers
    recent_errors()
    model = lib.llama_model_load_from_file(str(model_file.path).encode(), params)
    if not model:
        raise ModelError(
            f"llama.cpp cannot load {model_file.path}: {recent_errors() or 'no reason given'}"
        )
    if lib.llama_model_has_encoder(model) or lib.llama_model_is_diffusion(model):
        lib.llama_model_free(model)
        raise _no_writer(model_file)
    if settings.rope and lib.llama_model_rope_type(model) == lib.LLAMA_ROPE_TYPE_NONE:
        lib.llama_model_free(model)
        raise ModelError(
            f"{model_file.path} ({model_file.architecture}) has no rotary positions: leave"
            f" --rope {settings.rope} out"
        )
    return model


def make_context(
    model: Any, model_file: ModelFile, settings: RunnerSettings, slots: int, length: int
) -> Any:
    """A context of ``slots`` slots of ``length`` tokens; frees the model when there can be none.

    Raises ModelError or OutOfMemoryError.
    """
    lib = library()
    params = lib.llama_context_default_params()
    params.n_ctx = (settings.kv_tokens if settings.unified_kv else None) or length * slots
    outputs = outputs_at_once(settings, slots)
    params.n_batch = params.n_ubatch = max(
        settings.batch, outputs if settings.reproducible else slots
    )
    params.n_seq_max = slots
    # llama.cpp sizes its output buffers for every token of a batch unless told.
    params.n_outputs_max = outputs
    params.kv_unified = settings.unified_kv
    # Layers with a sliding window keep the window only. Keeping all would not make a slot's tail
    # free to go either: llama.cpp saves and restores no more than the window.
    params.swa_full = False
    params.no_perf = True
    kernels = {
        "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
        "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    }
    # Without it, attention too would depend on the shape of a pass.
    params.flash_attn_type = kernels["on" if settings.reproducible else settings.flash_attention]
    params.type_k, params.type_v = (
        getattr(lib, f"GGML_TYPE_{one.upper()}", _BF16) for one in kv_pair(settings.kv_type)
    )
    set_positions(params, settings)
    if settings.threads:
        params.n_threads = params.n_threads_batch = settings.threads
    try:
        if settings.kv_type != "f16" and not model_file.packs_kv:
            raise ModelError(
                f"{model_file.path} has heads of {model_file.head_dim} elements; keys and values "
                f"of type {settings.kv_type} need a multiple of 32. Use kv_type f16"
            )
        context = lib.llama_init_from_model(model, params)
        if not context:
            raise _no_context(model_file, settings, slots, length)
        if not lib.llama_get_memory(context):  # a step would abort the process
            lib.llama_free(context)
            raise _no_writer(model_file)
    except Exception:
        lib.llama_model_free(model)
        raise
    return context


def set_positions(params: Any, settings: RunnerSettings) -> None:
    """Let a context have the rotary positions that ``settings`` ask for."""
    if settings.rope:
        kind, factor = rope_scaling(settings.rope)
        params.rope_scaling_type = getattr(library(), f"LLAMA_ROPE_SCALING_TYPE_{kind.upper()}")
        params.rope_freq_scale = 1 / factor


def keeps_state(model: Any) -> bool:
    """Whether tokens are folded into a state that none can be taken out of again."""
    lib = library()
    return bool(lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model))


def said_of(model: Any, key: str) -> bytes:
    """The word that the model's file has under a key; empty where it has none."""
    room = ctypes.create_string_buffer(32)
    library().llama_model_meta_val_str(model, key.encode(), room, len(room))
    return room.value


def mixes_experts(model: Any, model_file: ModelFile) -> bool:
    """Whether rows are sorted by experts, so that each has as many rows as happen to choose it."""
    return said_of(model, f"{model_file.architecture}.expert_count") not in (b"", b"0")


def _no_writer(model_file: ModelFile) -> ModelError:
    return ModelError(
        f"{model_file.path} ({model_file.architecture}) is an encoder, has one, or is a diffusion "
        "model; Ingot runs models that continue a text token by token"
    )


def _no_context(
    model_file: ModelFile, settings: RunnerSettings, slots: int, length: int
) -> ModelError | OutOfMemoryError:
    path, reason = model_file.path, recent_errors()
    needed = ""
    if settings.kv_type != "f16":
        needed = f"keys and values of type {settings.kv_type} need ({reason}). Use kv_type f16"
    elif settings.reproducible:
        needed = f"reproducible answers need ({reason})"
    elif settings.flash_attention == "on":
        needed = f"was asked for ({reason}). Use --flash-attention off"
    if needed and "flash" in reason.lower():
        return ModelError(f"llama.cpp has no flash attention for {path}, which {needed}")
    return OutOfMemoryError(
        f"llama.cpp cannot make a context of {slots} slots x {length} tokens for {path} "
        f"({reason or 'no reason given'}); ask for fewer slots or a smaller context"
    )


_LAYER_BLOCK = re.compile(r"blk\.(\d{1,4})\.")
# What layers take on a device, and how many of them fit there.
#
# Checked against the buffer sizes that llama.cpp 0.3.36 reports on a Vulkan device.


# Of a device's memory: drivers, and backends for their own kernels, take some besides.
_LEFT_SHARE, _LEFT_AT_MOST = 1 / 16, 2**30


def fitted(model: ModelFile, settings: RunnerSettings) -> RunnerSettings:
    """With as many layers on the devices as they have room for, where nobody has said how many."""
    if settings.gpu_layers >= 0 or not offloads(settings):
        return settings
    names = None if settings.device == "auto" else settings.device.split(",")
    found = [one for one in devices() if (one.auto if names is None else one.name in names)]
    if not found or any(one.memory_free is None for one in found):
        return settings
    free = sum(one.memory_free or 0 for one in found)
    left = sum(min((one.memory_total or 0) * _LEFT_SHARE, _LEFT_AT_MOST) for one in found)
    layers = layers_that_fit(model, settings, int(free - left))
    if layers > model.layers:
        return settings
    log.warning(
        "%s: %d of %d layers go to %s, which has %s free; the others stay on the processor",
        model.path.name,
        max(layers - 1, 0),
        model.layers,
        " and ".join(one.name for one in found),
        gib(free),
    )
    return replace(settings, gpu_layers=layers)


def layers_that_fit(model: ModelFile, settings: RunnerSettings, room: int) -> int:
    """The most for ``gpu_layers`` that need at most ``room`` bytes; one more than the model has
    when all fit, since llama.cpp counts what follows the last block as a layer."""
    counts = range(model.layers + 1, 0, -1)
    return next((n for n in counts if device_bytes(model, settings, n) <= room), 0)


def device_bytes(model: ModelFile, settings: RunnerSettings, layers: int) -> int:
    """Estimate the device memory of ``layers`` layers. The first one is what follows the last
    block, then blocks from the last on. Where some blocks stay on the processor, steps copy the
    keys or the values of one of those, too (seen as half of a block's, or rarely both)."""
    blocks, output = _weights(model.path)
    cache = cache_of(model, settings)
    count = min(layers - 1, model.layers)
    copied = 0.5 if count < model.layers else 0
    of_a_layer = kv_bytes(model, cache, settings.kv_type) / model.layers
    weights = output + sum(blocks[model.layers - count :])
    return int(weights + of_a_layer * (count + copied)) + graph_bytes(model, cache)


@lru_cache(maxsize=4)
def _weights(path: Path) -> tuple[list[int], int]:
    """Bytes of every block, and of what follows them. Where that has no table of its own, the one
    of the embeddings is copied, which itself stays on the processor."""
    header, _ = read_parts(path)
    blocks: Counter[int] = Counter()
    output = 0
    own = any(one.name == f"{OUTPUT}.weight" for one in header.tensors)
    for one in header.tensors:
        if found := _LAYER_BLOCK.match(one.name):
            blocks[int(found[1])] += one.nbytes
        elif one.name.startswith(OUTPUT) or (one.name == EMBEDDINGS and not own):
            output += one.nbytes
    return [blocks[i] for i in range(max(blocks, default=-1) + 1)], output
