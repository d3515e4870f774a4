"""onnxruntime's k-quant search in pieces: the same bytes in a fraction of the time and memory."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

_Quantized: TypeAlias = "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]"

_PIECE = 1 << 18  # weights: a dozen arrays of this size stay in a processor's cache


def search_in_pieces(threads: int) -> None:
    """Replace the function that onnxruntime's quantizer calls for each matrix.

    Its own works on the whole matrix at once, with a dozen temporary arrays of the matrix's size in
    32 and 64 bits, on one core. Every group of weights is looked at by itself, so that pieces give
    the same result.
    """
    from onnxruntime.quantization.neural_compressor import weight_only

    whole = weight_only.quant_tensor_k_quant_cpu

    def search(data: np.ndarray[Any, Any], num_bits: int = 4, group_size: int = 32) -> _Quantized:
        return _in_pieces(whole, data, num_bits, group_size, threads)

    # The name that is called; its own way to a GPU needs cupy, which nothing here installs.
    weight_only.quant_tensor_k_quant_cuda = search


def _in_pieces(
    whole: Callable[..., _Quantized],
    data: np.ndarray[Any, Any],
    num_bits: int,
    group_size: int,
    threads: int,
) -> _Quantized:
    """``data`` of any shape, in groups of its last axis; quantized values, scales, zero points."""
    rows = data.shape[0]
    each = max(1, _PIECE // max(1, data.size // rows))

    def one(start: int) -> _Quantized:
        values, scales, zeros = whole(data[start : start + each], num_bits, group_size)
        return values.astype(np.uint8), scales, zeros  # whole numbers, returned as float64

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(one, range(0, rows, each)))
    values, scales, zeros = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return values, scales, zeros
