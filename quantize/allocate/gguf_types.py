"""The types of llama.cpp that a tensor may get."""

import functools
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from quantize.allocate.rate import Rater, losses
from quantize.allocate.sweep import Array, Matrix
from quantize.allocate.table import TypeChoice, Unit
from quantize.gguf.imatrixfile import read_matrix
from quantize.gguf.quantize import TYPES, needs_matrix
from quantize.gguf.rounding import rounded
from runtimes.models.gguf import TENSOR_TYPES

_ALIGNMENT = 32  # bytes that tensors of a GGUF file are padded to
# Types that are worth choosing among; those of blocks of 256 where the rows allow them.
_TYPES = (
    *("f16", "q8_0", "q6_k", "q5_1", "q5_0", "q5_k", "q4_1", "q4_k", "q4_0", "iq4_nl", "iq4_xs"),
    *("q3_k", "iq3_s", "q2_k", "iq3_xxs", "iq2_s"),
)


def gguf_rater(key: str, matrix: Path) -> Rater:
    """With the importance ``matrix`` that the file will be made with."""
    return Rater(key, partial(_unit, matrix))


@functools.lru_cache(maxsize=1)
def _means(matrix: Path) -> Mapping[str, Array]:
    return {name: entry.means for name, entry in read_matrix(matrix).entries.items()}


def _unit(matrix: Path, tensor: Matrix, tokens: int) -> Unit:
    """What each type that fits ``tensor`` takes and loses."""
    count, rows, width = tensor.weight.shape
    means = _means(matrix).get(tensor.name)
    own = None if means is None else means.reshape(count, width)
    kinds = [
        kind
        for kind in _TYPES
        if width % TENSOR_TYPES[TYPES[kind]][1] == 0
        and (means is not None or not needs_matrix(kind, tensor.name))
    ]

    def stored(weight: Array, kind: str, i: int) -> Array:
        return rounded(weight, kind, None if own is None else own[i])

    lost = losses(tensor, kinds, stored)
    choices = (
        TypeChoice(
            kind,
            _nbytes(tensor.weight.size, kind),
            (lost[kind] + (0.0 if kind == "f16" else _inputs(tensor, kind))) / tokens,
        )
        for kind in kinds
    )
    return Unit(tensor.name, count, rows, width, tuple(choices))


def _inputs(tensor: Matrix, kind: str) -> float:
    """The divergence of inputs in 8 bits, which kernels of that type round to."""
    block = 256 if TENSOR_TYPES[TYPES[kind]][1] == 256 else 32
    return tensor.activations.get(block, 0.0)


def _nbytes(weights: int, kind: str) -> int:
    _, block, size = TENSOR_TYPES[TYPES[kind]]
    return -(-weights // block * size // _ALIGNMENT) * _ALIGNMENT
