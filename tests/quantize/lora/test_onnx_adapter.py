"""The GGUF file of an adapter beside ONNX graphs, by architecture: the merged model."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from quantize.resolve import resolve
from runtimes.engine.loading import load_runner
from runtimes.errors import ModelError
from runtimes.models.registry import read_model
from runtimes.runner import StepPlan, StepRow
from runtimes.settings import RunnerSettings
from tests.adapters import make_adapter, write_adapter
from tests.quantize.conftest import run_quantize
from tests.quantize.shapes import SHAPES, make_random_model

TOKENS = [1, 40, 70, 90, 33, 200, 51, 8]
SIZE = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256}
EVERYTHING = ("_proj", "lm_head")


def logits(path: Path, adapter: Path | None = None):
    """After every token: the first ones in one step, the last by itself."""
    settings = RunnerSettings(slots=2, context=64, scored=len(TOKENS))
    with contextlib.closing(load_runner(read_model(path), settings)[0]) as runner:
        if adapter:
            runner.adapters.load("one", adapter)
        name = "one" if adapter else None
        rows = StepRow(0, 0, TOKENS[:-1], len(TOKENS) - 1, adapter=name)
        first = runner.execute(StepPlan((rows,))).copy()
        row = StepRow(0, len(TOKENS) - 1, TOKENS[-1:], 1, adapter=name)
        return np.concatenate([first, runner.execute(StepPlan((row,)))])


@pytest.mark.parametrize("name", ["pebble", "mistral", "qwen2", "qwen3", "phi3", "gemma3"])
def test_with_the_adapter_the_model_is_the_merged_one(pebble: Path, tmp_path: Path, name: str):
    source = pebble
    if name == "gemma3":
        source = make_random_model(tmp_path / name, SHAPES[name])
    elif name != "pebble":
        more = {"head_dim": 32} if name == "qwen3" else {}
        source = make_random_model(tmp_path / name, SHAPES[name], **SIZE, **more)
    lora = make_adapter(source, tmp_path / "poet", modules=EVERYTHING)
    file = Path(run_quantize(source, "--adapter", lora, "--out", tmp_path).stdout.strip())
    common = ("--recipe", "onnx-fp32", "--no-measure")
    run_quantize(source, *common, "--out", tmp_path / "base")
    run_quantize(source, *common, "--lora", lora, "--out", tmp_path / "merged")
    base, merged = (resolve(tmp_path / out, recipe="onnx-fp32") for out in ("base", "merged"))
    expected = logits(merged)
    assert np.abs(logits(base) - expected).max() > 1
    # The file has the adapter in half precision. Measured: 0.002 to 0.013.
    assert np.abs(logits(base, file) - expected).max() < 0.05


def test_products_of_rounded_activations_are_left_alone(pebble: Path, tmp_path: Path):
    """Their activations are not those that an adapter was trained with: they are smoothed."""
    run_quantize(pebble, "--recipe", "onnx-w8a8", "--no-measure", "--out", tmp_path / "built")
    path = resolve(tmp_path / "built", recipe="onnx-w8a8")
    adapter = write_adapter(pebble, tmp_path / "poet.gguf", 0)
    with pytest.raises(ModelError, match=r"poet.gguf changes blk.0.attn_q, .* merge it"):
        logits(path, adapter)
