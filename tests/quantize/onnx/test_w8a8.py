"""8-bit weights and activations: exact products, rows that do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantize.onnx.rounding import PAIR_LIMIT, limit_pairs, round_channels
from quantize.onnx.w8a8 import quantize_w8a8
from runtimes.models.registry import read_model
from runtimes.onnx.runner import OnnxRunner
from runtimes.runner import StepRow
from runtimes.settings import RunnerSettings
from tests.quantize.conftest import Built
from tests.quantize.logits import Table, divergence, log_softmax
from tests.quantize.onnx.graphs import computed, graph_of

Floats = npt.NDArray[np.float32]

TEXT = """What is the capital of Italy? The capital of Italy is Rome.
Tell me a story about a fox. Once there was a fox who lived near the river.
What is 12 + 30? 12 + 30 = 42. Spell the word castle. c a s t l e
"""


@pytest.fixture(scope="session", params=["qwen2", "phi4"])
def floats(request: pytest.FixtureRequest, builds: Callable[[str], Built]) -> Path:
    """A float graph whose output layer is the embedding table, and one where they are two."""
    return builds(request.param).out / "onnx-fp32"


@pytest.fixture(scope="session")
def w8a8(floats: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("w8a8") / "onnx-w8a8"
    quantize_w8a8(floats, out)
    return out


def _log_probabilities(folder: Path, prompts: list[list[int]], steps: int = 8) -> list[Table]:
    """After each prompt and after each of ``steps`` tokens decoded together: [1 + steps, vocab]."""
    runner = OnnxRunner(read_model(folder), RunnerSettings(slots=len(prompts), context=64))
    rows: list[list[Floats]] = [[] for _ in prompts]
    for slot, prompt in enumerate(prompts):
        plan = (StepRow(slot, 0, tuple(prompt), 1),)
        rows[slot].append(runner.execute(plan)[0].copy())
    for step in range(steps):
        plan = tuple(
            StepRow(slot, len(prompt) + step, (prompt[0] + step + 1,), 1)
            for slot, prompt in enumerate(prompts)
        )
        for slot, logits in enumerate(runner.execute(plan)):
            rows[slot].append(logits.copy())
    runner.close()
    return [log_softmax(np.stack(parts)) for parts in rows]


def _kl(reference: list[Table], tested: list[Table]) -> float:
    return divergence(np.concatenate(reference), np.concatenate(tested))


PROMPTS = [
    [int(token) for token in np.random.default_rng(seed).integers(10, 600, length)]
    for seed, length in enumerate((5, 17, 30, 9))
]


def test_a_row_is_what_it_is_alone(w8a8: Path):
    together = _log_probabilities(w8a8, PROMPTS)
    for prompt, row in zip(PROMPTS, together, strict=True):
        alone = _log_probabilities(w8a8, [prompt])[0]
        assert np.abs(alone - row).max() < 1e-3


def test_it_is_close_to_the_float_graph(floats: Path, w8a8: Path):
    reference = _log_probabilities(floats, PROMPTS)
    assert 0 < _kl(reference, _log_probabilities(w8a8, PROMPTS)) < 0.01
    assert _size(w8a8) < 0.3 * _size(floats)


def test_smoothing_takes_outliers_out(qwen2: Built, tmp_path: Path):
    """The same function with channels that are 60 times as large as the others."""
    usual = qwen2.out / "onnx-fp32"
    hard = tmp_path / "hard"
    hard.mkdir()
    for path in usual.iterdir():
        if not path.name.startswith("model.onnx"):
            (hard / path.name).write_bytes(path.read_bytes())
    model = onnx.load(usual / "model.onnx")
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        norm = next((i for i in node.input if "layernorm.weight" in i), None)
        if norm is None or "final" in norm or "output_layernorm" in norm:
            continue
        readers = [n for n in model.graph.node if n.input and n.input[0] == node.output[0]]
        _scale(tensors[norm], lambda w: w.__setitem__(slice(3, 250, 80), w[3:250:80] * 60))
        for reader in readers:
            _scale(
                tensors[reader.input[1]],
                lambda w: w.__setitem__(slice(3, 250, 80), w[3:250:80] / 60),
            )
    onnx.save(model, hard / "model.onnx")
    text = tmp_path / "calibration.txt"
    text.write_text(TEXT * 4, encoding="utf-8")
    plain, smooth = tmp_path / "plain", tmp_path / "smooth"
    quantize_w8a8(hard, plain)
    notes = quantize_w8a8(hard, smooth, text)
    assert any("calibration.txt" in note for note in notes)
    reference = _log_probabilities(usual, PROMPTS)
    assert _kl(reference, _log_probabilities(hard, PROMPTS)) < 1e-6
    losses = [_kl(reference, _log_probabilities(f, PROMPTS)) for f in (plain, smooth)]
    assert losses[1] < losses[0] / 3


@pytest.mark.parametrize("shape", [(64, 96), (897, 40), (4864, 33)])
def test_products_are_exact_on_this_processor(shape: tuple[int, int]):
    """Activations at their extremes, against the sums in 64 bits."""
    inputs, outputs = shape
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((outputs, inputs)).astype(np.float32)
    weight[::2] = np.sign(weight[::2])  # every weight of the channel is its largest
    codes = round_channels(weight)[0].T
    for rows in (1, 2, 5, 33):
        rows_codes = rng.choice(np.array([0, 1, 128, 255], np.uint8), (rows, inputs))
        rows_codes[0] = np.where(codes[:, 0] > 0, 255, 0)
        expected = (rows_codes.astype(np.int64) - 128) @ codes.astype(np.int64)
        for prepack in ("0", "1"):
            assert np.array_equal(_multiply(rows_codes, codes, prepack), expected)


def test_codes_keep_within_the_limit_at_little_cost():
    weight = np.random.default_rng(1).standard_normal((64, 897)).astype(np.float32)
    weight[5] = 0
    codes, scales = round_channels(weight)
    wide = codes.astype(int)
    assert np.abs(wide[:, 0:896:2] + wide[:, 1:896:2]).max() == PAIR_LIMIT
    most = np.abs(weight).max(axis=1, keepdims=True)
    most[5] = 1

    def error(values: Floats) -> float:
        return float(np.square(values - weight).sum())

    seven_bits = np.rint(weight / most * 63) * most / 63
    assert error(codes * scales[:, None]) < error(seven_bits) / 2
    assert not codes[5].any()
    pairs = np.array([[127, 2, -100, -61, 127, -127, 127, 127]], np.int16)
    limit_pairs(pairs)
    assert pairs.tolist() == [[126, 2, -84, -44, 127, -127, 64, 64]]


def _multiply(
    rows: npt.NDArray[np.uint8], codes: npt.NDArray[np.int8], no_prepack: str
) -> npt.NDArray[np.int32]:
    node = helper.make_node("MatMulInteger", ["a", "b", "zero"], ["y"])
    given = ("a", TensorProto.UINT8, ["rows", len(codes)])
    wanted = ("y", TensorProto.INT32, ["rows", codes.shape[1]])
    constants = {"b": codes, "zero": np.array(128, np.uint8)}
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", no_prepack)
    return computed(graph_of([node], given, wanted, constants), options, a=rows)


def _scale(tensor: onnx.TensorProto, change: Callable[[Floats], None]) -> None:
    values = numpy_helper.to_array(tensor).copy()
    change(values)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _size(folder: Path) -> int:
    return (folder / "model.onnx.data").stat().st_size
