"""Matrices in 8 bits with one scale for each output channel, for products of integers."""

import numpy as np
import numpy.typing as npt

# Without VNNI or AMX, ONNX Runtime multiplies by `vpmaddubsw`, which adds the products of two
# neighbours in 16 bits and saturates. Activations are at most 255, so two neighbouring weights may
# add up to 32767 // 255 = 128, no more.
PAIR_LIMIT = 32767 // 255
# How many steps the largest weight of a channel gets: with fewer the rounding is coarser, with more
# the limit cuts more pairs. With 63 it cuts none.
_LEVELS = (127, 111, 95, 79, 63)
_CHUNK = 1 << 22  # weights rounded at a time, so that temporary arrays stay small

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]


def round_channels(weight: npt.NDArray[np.floating]) -> tuple[Codes, Floats]:
    """Codes [channels, inputs] and scales [channels] for weights [channels, inputs].

    Each channel gets the scale, of five, with the least squared error after `limit_pairs`.
    """
    channels, inputs = weight.shape
    codes = np.empty((channels, inputs), np.int8)
    scales = np.empty(channels, np.float32)
    step = max(1, _CHUNK // max(inputs, 1))
    for start in range(0, channels, step):
        part = slice(start, start + step)
        codes[part], scales[part] = _round(np.ascontiguousarray(weight[part], np.float32))
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


def _round(weight: Floats) -> tuple[Codes, Floats]:
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
