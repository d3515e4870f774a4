"""Blocks of codes: closer than onnxruntime's own rounding, and what its operator reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization.neural_compressor import weight_only

from quantize.errors import UsageError
from quantize.onnx import kernels
from quantize.onnx.rounding import Rounded, dequantize, round_matrix
from quantize.recipes import parse_variant
from tests.quantize.onnx.graphs import computed, graph_of

Floats = npt.NDArray[np.float32]

VARIANTS = ["4z32", "4s128", "8s64", "8z16"]


def _matrices() -> dict[str, Floats]:
    rng = np.random.default_rng(5)
    plain = rng.standard_normal((96, 512)).astype(np.float32)
    heavy = (rng.standard_t(3, (96, 512)) * 0.02).astype(np.float32)
    blocks = plain.copy()
    blocks[:, :128] = 0
    blocks[:, 128:256] = 0.37  # without a range
    return {
        "plain": plain,
        "heavy tails": heavy,
        "one-sided": np.abs(plain) + 0.25,
        "shifted": heavy - 0.01,
        "flat blocks": blocks,
        "tiny": plain * np.float32(1e-9),
        "huge": plain * np.float32(1e9),
    }


def _error(found: Floats, wanted: Floats) -> float:
    return float(np.square(found.astype(np.float64) - wanted).sum())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of theirs, where a block has no range
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("kind", _matrices())
def test_no_further_off_than_onnxruntimes_own(kind: str, name: str):
    weight, variant = _matrices()[kind], parse_variant(name)
    found = _error(dequantize(round_matrix(weight, variant)), weight)
    scheme = "sym" if variant.symmetric else "asym"
    values, scale, zero = weight_only.quant_tensor(
        weight, variant.bits, variant.block, scheme, "uint"
    )
    plain = (values.astype(np.float64) - zero) * scale
    others = [plain]
    if not variant.symmetric:
        values, scale, zero = weight_only.quant_tensor_k_quant_cpu(
            weight, variant.bits, variant.block
        )
        others.append((values - zero) * scale)
    # The scales are in half precision, theirs are not: a digit less in the eleventh binary place.
    least = 1e-5 * _error(np.zeros_like(weight), weight) * 4.0**-variant.bits
    for other in others:
        assert found <= _error(other.reshape(weight.shape), weight) * 1.001 + least


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("inputs", [512, 70, 33])
@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_the_operator_multiplies_by_what_it_stands_for(inputs: int, name: str, size: float):
    """Also where the last block is not full, and where scales need 32 bits."""
    rng = np.random.default_rng(inputs)
    weight = (rng.standard_normal((40, inputs)) * size).astype(np.float32)
    rounded = round_matrix(weight, parse_variant(name))
    assert rounded.scales.dtype == (np.float16 if size == 1 else np.float32)
    x = rng.standard_normal((3, inputs)).astype(np.float32)
    expected = x.astype(np.float64) @ dequantize(rounded).astype(np.float64).T
    np.testing.assert_allclose(_multiply(x, rounded), expected, rtol=1e-4, atol=1e-5 * size)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("kind", ["plain", "heavy tails", "shifted", "flat blocks"])
def test_what_matters_more_is_closer(kind: str, name: str):
    """Of input channels, and of single weights, which may be as different as gradients are."""
    weight, variant = _matrices()[kind], parse_variant(name)
    plain = dequantize(round_matrix(weight, variant))
    rng = np.random.default_rng(8)
    for shape in (weight.shape[1:], weight.shape):
        importance = np.exp(3 * rng.standard_normal(shape)).astype(np.float32)
        found = dequantize(round_matrix(weight, variant, importance))
        off, usual = (
            float((importance * np.square(matrix - weight, dtype=np.float64)).sum())
            for matrix in (found, plain)
        )
        assert off <= usual * 1.001
        if kind != "flat blocks" and variant.bits == 4:
            assert off < 0.8 * usual


def test_what_no_text_asked_for_is_rounded_too():
    weight = _matrices()["plain"]
    importance = np.zeros_like(weight)
    importance[:50, :256] = 1
    for name in ("4z32", "8s64"):
        found = dequantize(round_matrix(weight, parse_variant(name), importance))
        assert _error(found, weight) <= 1.1 * _error(
            dequantize(round_matrix(weight, parse_variant(name))), weight
        )


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch):
    weight = np.random.default_rng(0).standard_normal((300, 160)).astype(np.float32)
    for name in ("4z32", "8s32"):
        whole = round_matrix(weight, parse_variant(name))
        monkeypatch.setattr("quantize.onnx.rounding._PIECE", 7 * 160)
        pieces = round_matrix(weight, parse_variant(name))
        monkeypatch.undo()
        np.testing.assert_array_equal(whole.codes, pieces.codes)
        np.testing.assert_array_equal(whole.scales, pieces.scales)


def test_sizes_are_what_is_stored():
    weight = np.random.default_rng(0).standard_normal((64, 576)).astype(np.float32)
    for name in VARIANTS:
        variant = parse_variant(name)
        rounded = round_matrix(weight, variant)
        arrays = (rounded.codes, rounded.scales, rounded.zeros)
        stored = sum(array.nbytes for array in arrays if array is not None)
        assert stored * 8 == pytest.approx(variant.bits_per_weight(576) * weight.size)
    assert parse_variant("4z32").bits_per_weight(4096) == 4.625
    assert parse_variant("8s64").bits_per_weight(4096) == 8.25


@pytest.mark.parametrize("name", ["5z32", "4x32", "4z33", "4z", ""])
def test_what_is_no_variant(name: str):
    with pytest.raises(UsageError, match="such as 4z32"):
        parse_variant(name)


def _multiply(x: Floats, rounded: Rounded) -> Floats:
    variant, outputs = rounded.variant, len(rounded.codes)
    constants: dict[str, npt.NDArray[Any]] = {"codes": rounded.codes, "scales": rounded.scales}
    inputs = ["x", "codes", "wide"]
    if rounded.zeros is not None:
        constants["zeros"] = rounded.zeros
        inputs.append("zeros")
    settings = {"bits": variant.bits, "block_size": variant.block, "accuracy_level": 1}
    nodes = [
        helper.make_node("Cast", ["scales"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node(
            *("MatMulNBits", inputs, ["y"]),
            domain="com.microsoft",
            **{**settings, "K": rounded.inputs, "N": outputs},
        ),
    ]
    given = ("x", TensorProto.FLOAT, ["rows", rounded.inputs])
    wanted = ("y", TensorProto.FLOAT, ["rows", outputs])
    return computed(graph_of(nodes, given, wanted, constants), x=x)


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
