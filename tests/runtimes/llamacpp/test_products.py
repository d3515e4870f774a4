"""Products of many rows, by whichever kernel this processor has for them, against single rows."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from runtimes.machine.hardware import detect
from tests.runtimes.llamacpp.ggml import Floats, Ggml, Given

# enum ggml_type
_Q4_0, _Q4_1, _Q5_0, _Q5_1, _Q8_0 = 2, 3, 6, 7, 8
_Q4_K, _Q5_K, _Q6_K, _IQ4_NL, _MXFP4 = 12, 13, 14, 20, 39
_I32 = 26
_BY_BLOCKS = (_Q8_0, _Q5_0, _Q5_1, _Q4_1)
_COUNTS, _ALONE = (2, 3, 4, 5, 6, 8, 9, 13, 32, 33, 64), 13
# Whether this processor has our kernels
_OURS = {"avx2", "fma", "f16c"} <= set(detect().instruction_sets)


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
        *((kind, False, length) for kind in _BY_BLOCKS for length in (32, 512, 1184)),
        *((kind, True, length) for kind in (_Q4_0, _IQ4_NL, _MXFP4) for length in (32, 512, 1184)),
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
    if _OURS and (columns % 32 == 0 or by_columns):
        # A row does not depend on how many there are, unless llama.cpp's tiles take them.
        wide = "avx512-vnni" in detect().instruction_sets
        most = {_Q5_K: 12 if wide else 48, _Q6_K: 32 if wide else 48}.get(kind, 64)
        assert all(alike for count, alike in same.items() if count <= most)


@pytest.mark.parametrize("columns", [32, 72, 160])
@pytest.mark.parametrize(
    ("tokens", "shared"), [(1, False), (3, True), (40, False), (40, True), (300, True)]
)
@pytest.mark.parametrize(
    ("kind", "repacked"),
    [*((kind, True) for kind in (_Q4_0, _IQ4_NL, _MXFP4, _Q4_K)),
     *((kind, False) for kind in (*_BY_BLOCKS, _Q5_K, _Q6_K))],
)  # fmt: skip
def test_rows_of_experts_are_each_what_the_expert_makes_of_them(
    ggml: Ggml, kind: int, repacked: bool, shared: bool, tokens: int, columns: int
) -> None:
    buffers = ggml.repacking() if repacked else None
    if repacked and buffers is None:
        pytest.skip("this build of llama.cpp repacks nothing")
    experts, used, length = 5, 2, 1280 if kind in (_Q4_K, _Q5_K, _Q6_K) else 1184
    dice = np.random.default_rng(tokens + columns)
    weights = dice.normal(size=(experts, columns, length)).astype(np.float32)
    x = dice.normal(size=(tokens, 1 if shared else used, length)).astype(np.float32)
    # One expert has a row of every token, and others few or none.
    picked = np.array([(t % 3 if t % 4 else 3, 4) for t in range(tokens)], np.int32)
    packed = [ggml.quantized(kind, one) for one in weights]
    found = ggml.compute(
        ggml.mul_mat_id,
        (tokens, used, columns),
        Given(kind, weights.shape, b"".join(packed), buffers),
        Given(0, x.shape, x.tobytes()),
        Given(_I32, picked.shape, picked.tobytes()),
        threads=3,
    )
    for expert in range(experts):
        token, place = np.nonzero(picked == expert)
        if len(token) == 0:
            continue
        rows = np.ascontiguousarray(x[token, 0 if shared else place])
        usual = multiply(ggml, kind, packed[expert], buffers, columns, rows)
        close = 2e-6 * (np.abs(rows) @ np.abs(weights[expert]).T)
        assert (np.abs(found[token, place] - usual) <= close).all(), expert
        if _OURS and not columns % 32:
            assert np.array_equal(found[token, place], usual), expert
