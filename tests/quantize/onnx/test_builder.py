from __future__ import annotations

import numpy as np
import pytest
from onnxruntime.quantization.neural_compressor import weight_only

from quantize.onnx import builder


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of groups of equal weights
@pytest.mark.parametrize(("rows", "columns", "bits"), [(1000, 96, 4), (300, 4864, 8), (1, 32, 4)])
def test_pieces_give_the_bytes_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, bits: int
):
    monkeypatch.setattr(builder, "_PIECE", 1 << 14)
    monkeypatch.setattr(weight_only, "quant_tensor_k_quant_cuda", None)
    builder.search_in_pieces(threads=2)
    weights = np.random.default_rng(rows).standard_normal((columns, rows), np.float32).T
    weights[0, :32] = 0  # a group without a range
    whole = weight_only.quant_tensor_k_quant_cpu(weights, bits, 32)
    pieces = weight_only.quant_tensor_k_quant_cuda(weights, bits, 32)
    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.shape == other.shape
