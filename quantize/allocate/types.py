"""The types that a tensor may get: llama.cpp's, and those of an ONNX graph."""

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from quantize.allocate.solve import Unit, rated, total
from quantize.allocate.sweep import BLOCKS, ROW, Matrix
from quantize.arrays import Floats
from quantize.gguf.ggml import rounded
from quantize.gguf.imatrixfile import read_matrix
from quantize.gguf.quantize import TYPES, needs_matrix
from quantize.onnx.rounding import dequantize, round_channels, round_matrix
from quantize.recipes import W8A8, Variant, parse_variant
from runtimes.errors import ModelError
from runtimes.models.gguf import TENSOR_TYPES

_ALIGNMENT = 32  # bytes that tensors of a GGUF file are padded to
# Types that are worth choosing among; those of blocks of 256 where the rows allow them.
_TYPES = (
    "f16 q8_0 q6_k q5_1 q5_0 q5_k q4_1 q4_k q4_0 iq4_nl iq4_xs q3_k iq3_s q2_k iq3_xxs iq2_s"
).split()


@functools.lru_cache(maxsize=1)
def _means(matrix: Path) -> Mapping[str, Floats]:
    return {name: entry.means for name, entry in read_matrix(matrix).entries.items()}


def gguf_unit(matrix: Path, tensor: Matrix, tokens: int) -> Unit:
    """Rate each of llama.cpp's types that fits ``tensor``, with the importance ``matrix`` that the
    file will be made with."""
    count, _, width = tensor.weight.shape
    means = _means(matrix).get(tensor.name)
    own = None if means is None else means.reshape(count, width)
    kinds = {}
    for kind in _TYPES:
        _, block, size = TENSOR_TYPES[TYPES[kind]]
        if width % block == 0 and (means is not None or not needs_matrix(kind, tensor.name)):
            # Kernels of that type round their inputs to 8 bits.
            inputs = tensor.activations.get(256 if block == 256 else 32, 0.0)
            nbytes = -(-tensor.weight.size // block * size // _ALIGNMENT) * _ALIGNMENT
            kinds[kind] = nbytes, 0.0 if kind == "f16" else inputs

    def stored(weight: Floats, kind: str, i: int) -> Floats:
        return rounded(weight, kind, None if own is None else own[i])

    return rated(tensor, tokens, kinds, stored)


# The ways to store a tensor in an ONNX graph.


_VARIANTS = "8s32 8s64 8s128 4z16 4s16 4z32 4s32 4z64 4s64 4z128 4s128".split()
# Whose matrices may serve for both ends, and are looked up in blocks.
_OF_TOKENS = ("token_embd.weight", "output.weight")
_PART_OF_QKV = re.compile(r"\.attn_[qkv]\.")


def fused(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """With queries, keys and values of a layer as one, where a graph makes them by one product."""
    found: dict[str, list[Unit]] = {}
    for unit in units:
        found.setdefault(_PART_OF_QKV.sub(".attn_qkv.", unit.name), []).append(unit)
    return tuple(_one(name, parts) if len(parts) > 1 else parts[0] for name, parts in found.items())


def onnx_unit(tensor: Matrix, tokens: int) -> Unit:
    """Rate each variant that fits ``tensor``; rounding is weighed by the sensitivities."""
    count, rows, width = tensor.weight.shape
    if count > 1:
        raise ModelError(
            f"{tensor.name} holds {count} experts, whose ways to be stored in ONNX are not chosen:"
            " take --to gguf, or a recipe by name instead of a target"
        )
    names = _VARIANTS
    if ROW in tensor.activations and tensor.name not in _OF_TOKENS:
        names = [*names, W8A8]
    variants = {v.name: v for v in (parse_variant(name).fitting(width) for name in names)}
    importance: Floats = tensor.fisher[0].mean(axis=0)
    # Only what they are to each other counts: in single precision, as short numbers.
    importance = importance / max(float(importance.mean()), 1e-30)

    def stored(weight: Floats, kind: str, _i: int) -> Floats:
        if kind == W8A8:
            codes, scales = round_channels(weight)
            return codes * scales[:, None]
        return dequantize(round_matrix(weight, variants[kind], importance))

    kinds = {
        kind: (rows * variant.row_bytes(width), _node_inputs(tensor, variant))
        for kind, variant in variants.items()
    }
    return rated(
        tensor, tokens, kinds, stored, tuple(float(f"{value:.4g}") for value in importance)
    )


def _node_inputs(tensor: Matrix, variant: Variant) -> float:
    """The divergence of inputs in 8 bits, in blocks as long as the weights' own: between, or
    beside, those that were measured, by the logarithm."""
    if not variant.block:
        return tensor.activations[ROW]
    few, many = (tensor.activations.get(block, 0.0) for block in BLOCKS)
    if not few or not many:
        return few
    share = math.log2(variant.block / BLOCKS[0]) / math.log2(BLOCKS[1] / BLOCKS[0])
    return float(few * (many / few) ** share)


def _one(name: str, parts: Sequence[Unit]) -> Unit:
    choices = tuple(
        replace(total([part.choice(first.kind) for part in parts]), kind=first.kind)
        for first in parts[0].choices
    )
    importance = np.average(
        [part.importance for part in parts], axis=0, weights=[part.rows for part in parts]
    )
    rows = sum(part.rows for part in parts)
    return replace(
        parts[0], name=name, rows=rows, choices=choices, importance=tuple(importance.tolist())
    )
