"""Products that are timed: of every variant, and with the weights that they should have."""

from __future__ import annotations

import numpy as np
import pytest

from quantize.onnx import kernels
from quantize.onnx.kernels import products
from quantize.onnx.rounding import Rounded, dequantize
from quantize.recipes import parse_variant


def test_products_of_every_variant_are_computed():
    for kind, shape in (("4z32", (64, 96)), ("w8a8", (64, 96)), ("8s128", (128, 32))):
        with products(kind, shape, 4, 50_000) as (compute, count):
            assert count > 1
            assert compute()[0].shape == (4, shape[1])


@pytest.mark.parametrize("name", ["4z32", "4s64", "8s32"])
def test_the_products_are_those_of_the_weights(name: str):
    variant, shape = parse_variant(name), (64, 24)
    session, count = kernels._products(variant, shape, 5_000)
    stored = kernels._weights(variant, shape)
    assert count == -(-5_000 // (shape[1] * variant.row_bytes(shape[0])))
    weight = dequantize(
        Rounded(variant, shape[0], stored["codes"], stored["scales"], stored.get("zeros"))
    )
    x = np.random.default_rng(0).standard_normal((3, shape[0])).astype(np.float32)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], count * x @ weight.T, atol=0.02 * count
    )


def test_products_of_integers_each_round_their_own_inputs():
    session, count = kernels._products(parse_variant("w8a8"), (64, 24), 5_000)
    assert count == -(-5_000 // (24 * (64 + 4)))
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    # All weights are one step of the scale; the inputs are taken once, twice, ...
    wanted = np.repeat(x.sum(axis=1, keepdims=True), 24, axis=1) * 0.01 * sum(range(1, count + 1))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, atol=0.02)
