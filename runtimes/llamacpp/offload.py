"""What layers take on a device, and how many of them fit there.

Checked against the buffer sizes that llama.cpp 0.3.36 reports on a Vulkan device.
"""

import logging
import re
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from runtimes.llamacpp.devices import devices, offloads
from runtimes.llamacpp.memory import cache_of, graph_bytes, kv_bytes
from runtimes.models.gguf import read_parts
from runtimes.models.memory import gib
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings

log = logging.getLogger(__name__)

_BLOCK = re.compile(r"blk\.(\d{1,4})\.")
_OUTPUT, _EMBEDDINGS = "output", "token_embd.weight"
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
    """What ``layers`` of them take on a device. The first one is what follows the last block, then
    blocks from the last on. Where some blocks stay on the processor, steps copy the keys or the
    values of one of those, too (seen as half of a block's, or rarely both)."""
    if layers <= 0:
        return 0
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
    own = any(one.name == f"{_OUTPUT}.weight" for one in header.tensors)
    for one in header.tensors:
        if found := _BLOCK.match(one.name):
            blocks[int(found[1])] += one.nbytes
        elif one.name.startswith(_OUTPUT) or (one.name == _EMBEDDINGS and not own):
            output += one.nbytes
    return [blocks[i] for i in range(max(blocks, default=-1) + 1)], output
