"""Errors of rounding that are made up for: less is lost of the outputs, and the files stay what
their types say."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from quantize.allocate.moments import moments_bytes, write_moments
from quantize.arrays import Array, Floats
from quantize.children import run_child
from quantize.gptq import Nearest, compensated
from quantize.onnx.rounding import dequantize, round_matrix
from quantize.recipes import parse_variant
from quantize.source import open_source
from runtimes.models.gguf import read_header
from tests.quantize.allocate import sweeping
from tests.quantize.conftest import run_quantize
from tests.quantize.gguf import rounding_child
from tests.quantize.planted import PLANTED, plant
from tests.quantize.shapes import SHAPES, make_random_model

_KINDS = ("q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q4_k", "q5_k", "q6_k", "iq4_xs")


def _correlated(width: int, seed: int = 0) -> Floats:
    """Moments of inputs of which a few directions make the most."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((width, 16)) @ rng.standard_normal((16, 4 * width))
    inputs = (mixed + 0.3 * rng.standard_normal(mixed.shape)) * rng.uniform(0.2, 3, (width, 1))
    return (inputs @ inputs.T / inputs.shape[1]).astype(np.float32)


def _lost(found: Floats, weight: Floats, moments: Floats) -> float:
    """Squared error of the outputs."""
    off = (found - weight).astype(np.float64)
    return float(np.einsum("oi,ij,oj->", off, moments, off))


def test_inputs_that_have_nothing_in_common_change_nothing():
    """Then there is nothing to make up for: each weight has the nearest code."""
    weight = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    energy = np.random.default_rng(2).uniform(0.5, 2, 64).astype(np.float32)

    def begin(_at: int, part: Floats) -> Nearest:
        assert part.shape == (5, 16)

        def nearest(x: Floats, _place: int) -> tuple[Array, Floats]:
            code = np.clip(np.rint(x * 4 + 8), 0, 15)
            return code, ((code - 8) / 4).astype(np.float32)

        return nearest

    found = compensated(weight, np.diag(energy), 16, begin).reshape(5, 64)
    np.testing.assert_array_equal(found, np.clip(np.rint(weight * 4 + 8), 0, 15))


@pytest.mark.parametrize("name", ["4z32", "4s128"])
def test_the_outputs_of_an_onnx_matrix_lose_less(name: str):
    weight = np.random.default_rng(3).standard_normal((48, 256)).astype(np.float32)
    moments, variant = _correlated(256), parse_variant(name)
    plain, made = (
        round_matrix(weight, variant, np.diagonal(moments), given) for given in (None, moments)
    )
    assert made.codes.shape == plain.codes.shape
    assert made.scales.dtype == plain.scales.dtype
    lost = [_lost(dequantize(one), weight, moments) for one in (made, plain)]
    assert lost[0] < 0.7 * lost[1]


def test_every_code_is_put_back_where_it_was_and_outputs_lose_less(tmp_path: Path):
    rows = np.random.default_rng(4).standard_normal((32, 512)).astype(np.float32)
    call = partial(rounding_child.compensated_rows, rows, _correlated(512), _KINDS)
    for kind, (same, made, plain) in run_child(call, "", tmp_path).items():
        assert same, kind
        assert _lost(made, rows, _correlated(512)) < 0.75 * _lost(plain, rows, _correlated(512))


def changed(path: Path, out: Path, times: float) -> Path:
    """A copy, 32 weights of a tensor of which are so many times as large as they were."""
    shutil.copyfile(path, out)
    header = read_header(out)
    info = next(one for one in header.tensors if one.name == "blk.2.attn_k.weight")
    data = np.memmap(out, np.float16, "r+", offset=header.data_begins + info.offset)
    data[:2] *= np.float16(times)  # scale and minimum of the first block
    data.flush()
    return out


@pytest.mark.parametrize("name", ["gemma3", "mixtral", "qwen2"])
def test_layers_one_by_one_have_the_inputs_that_they_have_together(name: str, tmp_path: Path):
    model = make_random_model(tmp_path / name, SHAPES[name])
    text = tmp_path / "text.txt"
    text.write_text("Layers of two kinds, one after the other. " * 300)
    call = partial(sweeping.moments_at_once_and_by_layers, model, text, tmp_path / "m")
    whole, found = run_child(call, "", tmp_path, torch=True)
    assert found.keys() == whole.keys()
    for tensor, expected in whole.items():
        most = np.abs(expected).max()
        np.testing.assert_allclose(found[tensor], expected, rtol=1e-3, atol=1e-3 * most)


@pytest.fixture(scope="module")
def moments(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Moments of the demo model's inputs."""
    work = tmp_path_factory.mktemp("moments")
    call = partial(write_moments, open_source(str(pebble)), pebble / "calibration.txt", work / "m")
    run_child(call, "", work, torch=True)
    return work / "m"


def test_moments_are_of_every_layer(pebble: Path, moments: Path):
    found = {path.stem for path in moments.glob("*.npy")}
    roles = "attn_q attn_k attn_v attn_qkv attn_output ffn_gate ffn_up ffn_down".split()
    assert found == {f"blk.{layer}.{role}.weight" for layer in range(6) for role in roles}
    whole = sum(path.stat().st_size / path.stat().st_nlink for path in moments.glob("*.npy"))
    assert whole == pytest.approx(moments_bytes(open_source(str(pebble)))[0], rel=0.05)
    one = np.load(moments / "blk.2.ffn_down.weight.npy")
    np.testing.assert_array_equal(one, one.T)
    assert np.linalg.eigvalsh(one.astype(np.float64)).min() > -1e-3 * one.max()


def test_a_file_is_as_sound_and_what_is_planted_is_found(
    pebble_f16: Path, moments: Path, pebble_matrix: Path, tmp_path: Path
):
    """It follows no matrix, and that is no fault of such a file."""
    made = tmp_path / "pebble-q4_k_m.gguf"
    call = partial(rounding_child.quantized_and_compensated, pebble_f16, made, moments)
    assert run_child(call, "", tmp_path) > 30
    files = [made, *(plant(name, made, tmp_path) for name in [*PLANTED][:4])]
    files += [changed(made, tmp_path / f"{times}.gguf", times) for times in (0, 4)]
    call = partial(rounding_child.compared, files, pebble_f16, [pebble_matrix] * len(files))
    assert [len(one.faults) for one in run_child(call, "", tmp_path)] == [0, *[1] * 6]


def test_columns_in_another_order_are_left_as_they_are(
    pebble_f16: Path, moments: Path, tmp_path: Path
):
    """A converter may have put them so: the moments are not theirs."""
    other = tmp_path / "other"
    other.mkdir()
    for path in moments.iterdir():
        (other / path.name).hardlink_to(path)
    (other / "norms.npz").unlink()
    with np.load(moments / "norms.npz") as norms:
        np.savez(other / "norms.npz", **{name: norms[name][::-1] for name in norms})
    plain, made = tmp_path / "plain.gguf", tmp_path / "made.gguf"
    run_child(partial(rounding_child.quantized, pebble_f16, [(plain, "q4_0", None)]), "", tmp_path)
    call = partial(rounding_child.quantized_and_compensated, pebble_f16, made, other, "q4_0")
    assert run_child(call, "", tmp_path) == 0
    data = [path.read_bytes()[read_header(path).data_begins :] for path in (made, plain)]
    assert data[0] == data[1]


def test_the_files_of_a_run_lose_less_and_say_why(pebble: Path, tmp_path: Path):
    """Without it q4_0 has 0.032 and onnx-int4-rtn 0.034 (docs/quantize.md)."""
    out = tmp_path / "out"
    recipes = ("--recipe", "q4_0,onnx-int4-rtn", "--limit", 512)
    run_quantize(pebble, *recipes, "--gptq", "--out", out)
    files = json.loads((out / "manifest.json").read_text())["files"]
    assert {one["recipe"] for one in files} == {"q4_0", "onnx-int4-rtn"}
    for one in files:
        assert any("--gptq" in note for note in one["notes"])
        assert one["fidelity"]["kl_mean"] < 0.02, one["recipe"]
    types = {tensor.type_name for tensor in read_header(out / "pebble-q4_0.gguf").tensors}
    assert types == {"F32", "Q4_0", "Q6_K"}


def test_an_importance_matrix_weighs_onnx_files(
    pebble: Path, pebble_built: Path, pebble_matrix: Path, tmp_path: Path
):
    """The same codes' bytes, others: one of these folders was built without."""
    out = tmp_path / "out"
    given = ("--recipe", "onnx-int4", "--imatrix", pebble_matrix, "--no-measure")
    run_quantize(pebble, *given, "--out", out)
    (entry,) = json.loads((out / "manifest.json").read_text())["files"]
    assert entry["imatrix"].startswith(pebble_matrix.name)
    made, plain = ((folder / "onnx-int4" / "model.onnx.data") for folder in (out, pebble_built))
    assert made.stat().st_size == plain.stat().st_size
    assert made.read_bytes() != plain.read_bytes()


def test_a_gguf_file_is_no_source_for_it(pebble_f16: Path, tmp_path: Path):
    given = ("--recipe", "q4_0", "--gptq", "--out", tmp_path / "out")
    done = run_quantize(pebble_f16, *given, check=False)
    assert done.returncode == 2
    assert "--gptq needs the model's layers" in done.stderr


def test_matrices_the_other_way_round_have_no_moments(tmp_path: Path):
    model = make_random_model(tmp_path / "gpt2", SHAPES["gpt2"], n_embd=64)
    text = tmp_path / "text.txt"
    text.write_text("A text of some length. " * 200)
    run_child(
        partial(write_moments, open_source(str(model)), text, tmp_path / "m"),
        "",
        tmp_path,
        torch=True,
    )
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["norms.npz"]
