"""LoRA adapters beside an ONNX graph on a device, and in floats of 16 bits."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file

from runtimes.onnx.runner import OnnxRunner
from runtimes.runner import Logits, StepRow
from tests.adapters import write_adapter
from tests.runtimes.devices.opened import halved, opened, step
from tests.runtimes.machine.tiny_onnx import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS

# The graph's products by their own names, as the builder names them, and their sizes
# The processor as a device is named twice to ONNX Runtime, which says so.
pytestmark = pytest.mark.filterwarnings("ignore:Duplicate provider")

PRODUCTS = {
    "query": ("attn/q_proj", "self_attn.q_proj", "attn_q", HEADS * HEAD_DIM, HIDDEN),
    "value": ("attn/v_proj", "self_attn.v_proj", "attn_v", KV_HEADS * HEAD_DIM, HIDDEN),
    "down": ("mlp/down_proj", "mlp.down_proj", "ffn_down", HIDDEN, FFN),
}
PROMPT = [3, 41, 7, 22, 60]
ADAPTERS = (None, "first", "second")


@pytest.fixture(scope="module")
def named(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, its products named as in a real one."""
    out = tmp_path_factory.mktemp("named")
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    model = onnx.load(out / "model.onnx")
    for node in model.graph.node:
        if known := PRODUCTS.get(node.output[0]):
            node.name = f"/model/layers.0/{known[0]}/MatMul"
    onnx.save(model, out / "model.onnx")
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("adapters")
    shapes = {f"model.layers.0.{name}.weight": sizes for _, name, _, *sizes in PRODUCTS.values()}
    save_file({name: np.zeros(shape) for name, shape in shapes.items()}, out / "model.safetensors")
    roles = {name: role for _, name, role, *_ in PRODUCTS.values()}
    return {
        name: write_adapter(out, out / f"{name}.gguf", rank, roles, rank)
        for rank, name in ((3, "first"), (5, "second"), (2, "third"))
    }


def load(runner: OnnxRunner, files: dict[str, Path], *names: str) -> None:
    assert runner.adapters is not None
    for name in names:
        runner.adapters.load(name, files[name])


def history(runner: OnnxRunner, files: dict[str, Path]) -> list[Logits]:
    """Rows of several adapters, which come and go meanwhile."""
    load(runner, files, "third", "first", "second")
    found, length = [], len(PROMPT)
    for slot, name in enumerate(ADAPTERS):
        found.append(step(runner, StepRow(slot, 0, PROMPT, 1, adapter=name)))
    for token in (9, 10):
        rows = [StepRow(s, length, [token], 1, adapter=name) for s, name in enumerate(ADAPTERS)]
        found.append(step(runner, *rows))
        length += 1
        assert runner.adapters is not None
        if "third" in runner.adapters.names:
            runner.adapters.unload("third")
    found.append(step(runner, StepRow(2, length, [11], 1, adapter="second")))
    runner.adapters.unload("second")
    runner.adapters.unload("first")
    found.append(step(runner, StepRow(0, length, [11], 1)))
    return found


def test_logits_with_adapters_are_the_processors(
    named: Path, files: dict[str, Path], device: str
) -> None:
    with opened(named, "cpu") as runner:
        expected = history(runner, files)
    with opened(named, device) as runner:
        found = history(runner, files)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    for one, other in itertools.combinations(found[3], 2):  # each says something of its own
        assert np.abs(one - other).max() > 0.1


def test_a_graph_in_floats_of_16_bits_takes_adapters(
    named: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    halved(named, tmp_path)
    with opened(named, "cpu") as runner:
        expected = history(runner, files)
    with opened(tmp_path, "cpu") as runner:
        found = history(runner, files)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02)
