"""What measuring a table takes, before it begins: memory, and time."""

import math
import time

import numpy as np

from quantize.quality.text import WINDOW
from quantize.source import SourceModel
from quantize.source.shapes import shapes_of

WINDOWS = 8  # of text that sensitivities are measured on
_FLOAT = 4  # bytes
_COPIES = 3  # of a layer's weights: in single precision, gradients, and their squares
_OF_OUTPUT = 2  # whose gradients are never held at once
_LOGITS = 4  # copies of a window's: of half and of single precision, probabilities, gradients
_STATES = 24  # times the hidden size, for each token of a window: what one layer keeps to go back
_PASSES = 4  # forward, once more, and back, which is two
_ROUNDING_S = 4e-7  # seconds a weight, for all types; of large matrices a sample is rounded
_SIDE = 1024  # of the matrix product that tells how fast this machine is


def sweep_bytes(source: SourceModel) -> int:
    """Memory that `quantize.allocate.sweep` takes at most: the weights, which are read where they
    lie, and with them a layer, the output or the embedding in single precision, and a window's
    states. An embedding of its own is not read before its turn."""
    layer, head, width, vocab, tied = _parts(source)
    stored = source.bytes / max(source.parameters, 1)
    wide, window = head * _FLOAT * _OF_OUTPUT, WINDOW * _FLOAT
    return source.bytes + max(
        layer * _FLOAT * _COPIES + window * width * _STATES,
        wide + window * vocab * _LOGITS - (0 if tied else int(head * stored)),
        wide,
    )


def sweep_seconds(source: SourceModel) -> float:
    """About how long it takes here, by the speed of one matrix product."""
    a = np.ones((_SIDE, _SIDE), np.float32)
    fastest = math.inf
    for _ in range(3):
        began = time.perf_counter()
        a @ a
        fastest = min(fastest, time.perf_counter() - began)
    rate = 2 * _SIDE**3 / fastest
    products = 2 * source.parameters * WINDOW * WINDOWS * _PASSES / rate
    return products + source.parameters * _ROUNDING_S


def _parts(source: SourceModel) -> tuple[int, int, int, int, bool]:
    """Weights of the largest layer and of the output, the hidden size, the vocabulary, and whether
    the output is the embedding."""
    shapes = shapes_of(source).weights
    layers: dict[str, int] = {}
    for name, shape in shapes.items():
        if name.startswith("blk."):
            number = name.split(".")[1]
            layers[number] = layers.get(number, 0) + math.prod(shape)
    width, vocab = (*shapes.get("token_embd.weight", (0, 0)), 0)[:2]
    tied = "output.weight" not in shapes
    return max(layers.values(), default=0), width * vocab, width, vocab, tied
