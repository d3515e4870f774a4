"""Rounding of a matrix to what MatMulNBits of ONNX Runtime reads: blocks of codes with a scale and,
where they are not symmetric, a whole zero point.

    weight = (code - zero point) * scale

Scale and zero point of a block are searched together for the least squared error, weighted where it
is known how much each weight matters. The usual way, a float minimum that becomes a zero point in
the end, leaves a scale that no longer fits.

Products of integers (MatMulInteger) take 8 bits with one scale for each output channel.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.arrays import Array, Bytes, Floats
from quantize.gptq import Nearest, compensated
from quantize.recipes import Variant
from runtimes.machine.cpu import allowed_cpus

_PIECE = 1 << 16  # weights: the dozen arrays of a piece stay in a processor's cache
# Scales are tried at these parts of the one that cuts nothing off, zero points that far from the
# one in the middle: docs/quantize.md has what more of them would gain.
_PARTS = {4: tuple(np.linspace(0.8, 1.04, 7)), 8: (0.985, 1.0)}
_AROUND = {4: (-1, 0, 1), 8: (0,)}
_REFITS = 1
_FLOOR = 1e-3  # of a block's mean importance: what no text has asked for is rounded too
_HALF = np.finfo(np.float16)


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix [outputs, inputs] as MatMulNBits reads it: ``codes`` [outputs, blocks, bytes],
    ``scales`` [outputs, blocks] in 16 or 32 bits, ``zeros`` [outputs, bytes] unless symmetric."""

    variant: Variant
    inputs: int
    codes: Bytes
    scales: Array
    zeros: Bytes | None


def round_matrix(
    weight: Array,
    variant: Variant,
    importance: Floats | None = None,
    moments: Floats | None = None,
) -> Rounded:
    """``weight`` [outputs, inputs] as ``variant`` says.

    ``importance``, of each input channel [inputs] or each weight [outputs, inputs], weighs the
    squared errors. Works in pieces over all processors: beside the result it takes a few MB. With
    ``moments`` [inputs, inputs] of the inputs, each column's errors are made up for by those left,
    as `compensated` has it; the block must divide a row, and it takes several times as long.
    """
    outputs, inputs = weight.shape
    step = max(1, _PIECE // max(inputs, 1))
    slices = [slice(start, start + step) for start in range(0, outputs, step)]
    with ThreadPoolExecutor(len(allowed_cpus())) as pool:
        most = max(pool.map(lambda part: float(np.abs(weight[part]).max(initial=0)), slices))
        # Half precision has the digits of scales in its range; those of a matrix outside need 32.
        half = float(_HALF.tiny) < most / 2**variant.bits and most < float(_HALF.max)
        kind = np.float16 if half else np.float32
        if moments is not None:
            parts = [_compensated(weight, variant, importance, moments, kind)]
        else:
            one = partial(_round, weight, variant, importance, kind)
            parts = list(pool.map(one, slices))
    codes, scales, zeros = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Rounded(variant, inputs, codes, scales, None if variant.symmetric else zeros)


def dequantize(rounded: Rounded) -> Floats:
    """The matrix [outputs, inputs] that ``rounded`` stands for."""
    variant, (outputs, blocks, _) = rounded.variant, rounded.codes.shape
    codes = _unpack(rounded.codes, variant.bits)
    zeros: Any = 1 << (variant.bits - 1)
    if rounded.zeros is not None:
        zeros = _unpack(rounded.zeros, variant.bits)[:, :blocks, None].astype(np.float32)
    whole: Floats = (codes.astype(np.float32) - zeros) * rounded.scales[..., None].astype(
        np.float32
    )
    return whole.reshape(outputs, -1)[:, : rounded.inputs]


def _round(
    weight: Array,
    variant: Variant,
    importance: Floats | None,
    kind: Any,
    rows: slice,
) -> tuple[Bytes, Array, Bytes]:
    """Packed codes, scales and packed zero points of some rows."""
    x = _blocks(weight[rows], variant.block)
    w = None
    if importance is not None:
        of_rows = importance[rows] if importance.ndim == 2 else importance[None]
        w = _relative(_blocks(of_rows, variant.block))
    scale, zero = _search(x, w, variant)
    scale = scale.astype(kind)
    d = np.empty_like(x)
    _steps(x, scale.astype(np.float32), zero, variant.bits, d)
    d += zero[..., None]
    packed = _pack(d.astype(np.uint8), variant.bits)
    return packed, scale, _pack(zero.astype(np.uint8), variant.bits)


def _compensated(
    weight: Array, variant: Variant, importance: Floats | None, moments: Floats, kind: Any
) -> tuple[Bytes, Array, Bytes]:
    """As `_round`, by `compensated`."""
    (outputs, inputs), block = weight.shape, variant.block
    columns = (np.diagonal(moments) if importance is None else importance).reshape(-1, inputs)
    w = _relative(_blocks(columns, block))
    scales = np.empty((outputs, inputs // block), kind)
    zeros = np.empty(scales.shape, np.uint8)

    def begin(at: int, part: Floats) -> Nearest:
        found, zero = _search(part[:, None], w[:, at : at + 1], variant)
        scales[:, at], zeros[:, at] = found[:, 0], zero[:, 0]
        scale = scales[:, at : at + 1].astype(np.float32)
        steps = np.empty((outputs, 1, 1), np.float32)

        def nearest(x: Floats, _place: int) -> tuple[Array, Floats]:
            _steps(x[:, None, None], scale, zero, variant.bits, steps)
            return (steps[:, 0] + zero)[:, 0], (steps[:, 0] * scale)[:, 0]

        return nearest

    codes = compensated(weight, moments, block, begin)
    return _pack(codes, variant.bits), scales, _pack(zeros, variant.bits)


def _blocks(matrix: Array, block: int) -> Floats:
    """[rows, inputs] as [rows, blocks, block], the last one filled up with zeros."""
    matrix = np.ascontiguousarray(matrix, np.float32)
    if missing := -matrix.shape[1] % block:
        matrix = np.pad(matrix, ((0, 0), (0, missing)))
    return matrix.reshape(len(matrix), -1, block)


def _relative(w: Floats) -> Floats:
    """To the mean of each block, with a floor; what has no importance at all is all alike."""
    mean = w.mean(axis=2, keepdims=True)
    return np.where(mean > 0, w / np.where(mean > 0, mean, 1), 1) + np.float32(_FLOOR)


def _search(x: Floats, w: Floats | None, variant: Variant) -> tuple[Floats, Floats]:
    """Scale and zero point [rows, blocks] of each block."""
    wx = x if w is None else w * x
    best = np.full(x.shape[:2], -1, np.float32)
    scale, zero = np.zeros_like(best), np.zeros_like(best)
    d, wd = np.empty_like(x), np.empty_like(x)

    def attempt(tried: Floats, zeros: Floats) -> None:
        """With the scale that fits the codes of ``tried`` best, the error is less by this sum."""
        _steps(x, tried, zeros, variant.bits, d)
        square = _sums(d, d if w is None else np.multiply(w, d, out=wd))
        product = _sums(wx, d)
        safe = np.where(square > 0, square, 1)
        less = product * product / safe
        better = less > best
        best[better] = less[better]
        scale[better] = (product / safe)[better]
        zero[better] = zeros[better]

    for whole, zeros in _candidates(x, variant):
        for part in _PARTS[variant.bits]:
            attempt(whole * np.float32(part), zeros)
    for _ in range(_REFITS):
        attempt(scale.copy(), zero.copy())
    return scale, zero


def _candidates(x: Floats, variant: Variant) -> Iterator[tuple[Floats, Floats]]:
    """Scales that cut nothing off, and the zero points they belong to."""
    low, high = np.minimum(x.min(axis=2), 0), np.maximum(x.max(axis=2), 0)
    most, middle = np.float32(2**variant.bits - 1), np.float32(2 ** (variant.bits - 1))
    if variant.symmetric:
        # There is one step more below than above: a scale may be negative to make use of it.
        zeros = np.full_like(low, middle)
        yield np.maximum(high / (middle - 1), -low / middle), zeros
        yield -np.maximum(high / middle, -low / (middle - 1)), zeros
        return
    span = high - low
    centre = np.rint(-low / np.where(span > 0, span, 1) * most)
    for away in _AROUND[variant.bits]:
        zeros = np.clip(centre + np.float32(away), 0, most)
        above = np.where(zeros < most, high / np.maximum(most - zeros, 1), 0)
        below = np.where(zeros > 0, -low / np.maximum(zeros, 1), 0)
        yield np.maximum(above, below), zeros


def _steps(x: Floats, scale: Floats, zero: Floats, bits: int, out: Floats) -> None:
    """The whole steps from the zero point to each weight, as far as there are codes."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(scale == 0, 0, 1 / scale)
    np.multiply(x, inverse[..., None], out=out)
    np.rint(out, out=out)
    np.maximum(out, -zero[..., None], out=out)
    np.minimum(out, (2**bits - 1 - zero)[..., None], out=out)


def _sums(a: Floats, b: Floats) -> Floats:
    return np.asarray(np.einsum("rbk,rbk->rb", a, b))


def _pack(codes: Bytes, bits: int) -> Bytes:
    """Two codes of 4 bits in a byte, the first in its lower half; the last axis may be odd."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    packed: Bytes = codes[..., ::2] | codes[..., 1::2] << np.uint8(4)
    return packed


def _unpack(packed: Bytes, bits: int) -> Bytes:
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


# Without VNNI or AMX, ONNX Runtime multiplies by `vpmaddubsw`, which adds the products of two
# neighbours in 16 bits and saturates. Activations are at most 255, so two neighbouring weights may
# add up to 32767 // 255 = 128, no more.
PAIR_LIMIT = 32767 // 255
# How many steps the largest weight of a channel gets: with fewer the rounding is coarser, with more
# the limit cuts more pairs. With 63 it cuts none.
_LEVELS = (127, 111, 95, 79, 63)
_CHUNK = 1 << 22  # weights rounded at a time, so that temporary arrays stay small
SignedCodes = npt.NDArray[np.int8]


def round_channels(weight: npt.NDArray[np.floating]) -> tuple[SignedCodes, Floats]:
    """SignedCodes [channels, inputs] and scales [channels] for weights [channels, inputs].

    Each channel gets the scale, of five, with the least squared error after `limit_pairs`.
    """
    channels, inputs = weight.shape
    codes = np.empty((channels, inputs), np.int8)
    scales = np.empty(channels, np.float32)
    step = max(1, _CHUNK // max(inputs, 1))
    for start in range(0, channels, step):
        part = slice(start, start + step)
        codes[part], scales[part] = _round_channels(np.ascontiguousarray(weight[part], np.float32))
    return codes, scales


def limit_pairs(codes: npt.NDArray[np.int16]) -> None:
    """Move codes 2i and 2i+1 of each row towards zero, in place, until they add up to no more than
    PAIR_LIMIT either way."""
    even = codes[:, : codes.shape[1] // 2 * 2 : 2]
    odd = codes[:, 1::2]
    total = even + odd
    excess = total - np.clip(total, -PAIR_LIMIT, PAIR_LIMIT)
    if not excess.any():
        return
    half = excess // 2
    odd -= half
    even -= excess - half


def _round_channels(weight: Floats) -> tuple[SignedCodes, Floats]:
    most = np.abs(weight).max(axis=1, keepdims=True)
    most[most == 0] = 1  # a channel of zeros: any scale will do
    best = np.full(len(weight), np.inf, np.float32)
    codes = np.zeros(weight.shape, np.int8)
    scales = np.empty(len(weight), np.float32)
    for level in _LEVELS:
        scale = most / np.float32(level)
        tried = np.rint(weight / scale).astype(np.int16)
        limit_pairs(tried)
        off = tried * scale
        off -= weight
        error = np.einsum("ij,ij->i", off, off)
        better = error < best
        codes[better] = tried[better]
        scales[better] = scale[better, 0]
        best[better] = error[better]
    return codes, scales
