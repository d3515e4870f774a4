"""Products of many rows, by whichever kernel this processor has for them, against single rows."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from runtimes.machine.hardware import detect
from tests.runtimes.llamacpp.ggml import Floats, Ggml, Given

_Q4_0, _Q8_0, _Q4_K, _Q5_K, _Q6_K = 2, 8, 12, 13, 14  # enum ggml_type
_COUNTS, _ALONE = (2, 3, 4, 5, 6, 8, 9, 13, 32, 64), 13


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    return Ggml()


def multiply(
    ggml: Ggml, kind: int, packed: bytes, buffers: ctypes.c_void_p | None, columns: int, x: Floats
) -> Floats:
    """Rows of ``x`` times the weights, ``columns`` of ``x.shape[1]``."""
    weights = Given(kind, (columns, x.shape[1]), packed, buffers)
    rows = Given(0, x.shape, x.tobytes())
    return ggml.compute(ggml.mul_mat, (len(x), columns), weights, rows)


@pytest.mark.parametrize("columns", [32, 64, 72])
@pytest.mark.parametrize(
    ("kind", "repacked", "length"),
    [
        *((_Q8_0, False, length) for length in (32, 512, 1184)),
        *((_Q4_0, True, length) for length in (32, 512, 1184)),
        *((_Q4_K, True, length) for length in (256, 1280)),
        *((kind, False, length) for kind in (_Q5_K, _Q6_K) for length in (256, 1280)),
    ],
)
def test_many_rows_are_each_what_one_row_is(
    ggml: Ggml, kind: int, repacked: bool, length: int, columns: int
) -> None:
    buffers = ggml.repacking() if repacked else None
    if repacked and buffers is None:
        pytest.skip("this build of llama.cpp repacks nothing")
    dice = np.random.default_rng(length + columns)
    weights = dice.normal(size=(columns, length)).astype(np.float32)
    x = dice.normal(size=(max(_COUNTS), length)).astype(np.float32)
    x[:, ::37] *= 30  # values that the others of their block are small beside
    packed = ggml.quantized(kind, weights)
    rows = (x[number : number + 1] for number in range(_ALONE))
    alone = np.concatenate([multiply(ggml, kind, packed, buffers, columns, row) for row in rows])
    exact = (x @ weights.T)[:_ALONE]
    assert np.corrcoef(alone.ravel(), exact.ravel())[0, 1] > 0.99
    close = 2e-6 * (np.abs(x) @ np.abs(weights).T)
    same = {}
    for count in _COUNTS:
        found = multiply(ggml, kind, packed, buffers, columns, x[:count])
        both = min(count, _ALONE)
        assert (np.abs(found[:both] - alone[:both]) <= close[:both]).all(), count
        same[count] = np.array_equal(found[:both], alone[:both])
    by_columns = kind in (_Q5_K, _Q6_K)
    if "avx512-vnni" in detect().instruction_sets and (columns % 32 == 0 or by_columns):
        # A row does not depend on how many there are, unless llama.cpp's tiles take them.
        most = {_Q5_K: 12, _Q6_K: 32}.get(kind, 64)
        assert all(alike for count, alike in same.items() if count <= most)
