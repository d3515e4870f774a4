"""The exports compute what transformers computes, and quantization loses as much as it should."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from quantize.resolve import resolve
from runtimes.engine.loading import load_runner
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings
from tests.quantize.conftest import Built, recipes_of

POSITIONS = 64  # four times the sliding window of the random Gemma

Table = npt.NDArray[np.float64]


def _tokens() -> list[int]:
    return random.Random(7).choices(range(3, 1000), k=POSITIONS)


def _log_softmax(logits: npt.NDArray[np.floating]) -> Table:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


@cache
def _original(source: Path, sliding_window: int | None = None) -> Table:
    import torch
    from transformers import AutoModelForCausalLM

    more = {} if sliding_window is None else {"sliding_window": sliding_window}
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **more).eval()
    with torch.inference_mode():
        return _log_softmax(model(torch.tensor([_tokens()])).logits[0].numpy())


@cache
def _built(out: Path, recipe: str) -> Table:
    runner = load_runner(
        read_model(resolve(out, recipe=recipe)), RunnerSettings(slots=1, context=128, scored=64)
    )
    try:
        return _log_softmax(runner.score(_tokens()))
    finally:
        runner.close()


def _divergence(built: Built, recipe: str) -> float:
    """Mean Kullback-Leibler divergence from the original."""
    original, other = _original(built.source), _built(built.out, recipe)
    return float((np.exp(original) * (original - other)).sum(axis=-1).mean())


@pytest.mark.parametrize("recipe", ["f16", "onnx-fp32"])
def test_exports_agree_with_transformers(built: Built, recipe: str):
    """At every one of 64 positions, over the whole vocabulary."""
    original, export = _original(built.source), _built(built.out, recipe)
    assert export.shape == original.shape
    assert np.abs(export - original).max() <= 0.05


def test_the_comparison_could_fail(built: Built):
    """The distributions are far from flat and from each other."""
    original = _original(built.source)
    assert np.abs(original[1:] - original[:-1]).max(axis=-1).min() > 1
    assert original.max() - original.min() > 5


def test_the_sliding_window_matters(builds):
    built = builds("gemma3")
    config = json.loads((built.source / "config.json").read_text())
    assert config["sliding_window"] < POSITIONS
    without = _original(built.source, sliding_window=4 * POSITIONS)
    assert np.abs(_original(built.source) - without)[config["sliding_window"] + 1 :].max() > 0.5


@pytest.mark.parametrize(("eight", "four"), [("q8_0", "q4_k_m"), ("onnx-int8", "onnx-int4")])
def test_fewer_bits_lose_more(qwen2: Built, eight: str, four: str):
    assert _divergence(qwen2, eight) < _divergence(qwen2, four) < 0.3


@pytest.mark.parametrize("eight", ["q8_0", "onnx-int8"])
@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_quantization_loses_a_little(builds: Callable[[str], Built], name: str, eight: str):
    built = builds(name)
    assert 0 < _divergence(built, eight) < 0.02


def test_the_sizes_are_what_the_bits_say(built: Built):
    full = (built.source / "model.safetensors").stat().st_size
    made = recipes_of(built.source.name).split(",")
    shares = {"q8_0": 0.32, "q4_k_m": 0.23, "onnx-int8": 0.33}
    for recipe, share in shares.items():
        if recipe not in made:
            continue
        assert read_model(resolve(built.out, recipe=recipe)).nbytes < share * full


def test_a_shared_embedding_is_stored_once(qwen2: Built):
    """Qwen2 ties input and output; int8 keeps the matrix in 8 bits, once."""
    import onnx

    graph = onnx.load(qwen2.out / "onnx-int8" / "model.onnx", load_external_data=False).graph
    shape = json.loads((qwen2.source / "config.json").read_text())
    table = shape["vocab_size"] * shape["hidden_size"]
    sizes = [int(np.prod(tensor.dims)) for tensor in graph.initializer]
    assert sizes.count(table) == 1
