"""The exports compute what transformers computes, and quantization loses as much as it should."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np

from quantize.resolve import resolve
from runtimes.models.registry import read_model
from tests.quantize.conftest import RECIPES, Built
from tests.quantize.logits import divergence, of_transformers, scored

POSITIONS = 64  # four times the sliding window of the random Gemma
TOKENS = random.Random(7).choices(range(3, 1000), k=POSITIONS)


def test_files_agree_with_transformers_and_have_the_size_of_their_bits(built: Built):
    """At every one of 64 positions, over the whole vocabulary; the distributions are far from flat
    and from each other, so that the comparison could fail."""
    original = of_transformers(built.source, TOKENS)
    assert np.abs(original[1:] - original[:-1]).max(axis=-1).min() > 1
    assert np.ptp(original) > 5
    full = (built.source / "model.safetensors").stat().st_size
    for recipe in RECIPES[built.source.name].split(","):
        found = scored(resolve(built.out, recipe=recipe), TOKENS)
        assert found.shape == original.shape
        if recipe in ("f16", "onnx-fp32"):
            assert np.abs(found - original).max() <= 0.05
        else:
            assert 0 < divergence(original, found) < 0.02
            assert read_model(resolve(built.out, recipe=recipe)).nbytes < 0.33 * full


def test_the_sliding_window_matters(builds: Callable[[str], Built]):
    source = builds("gemma3").source
    without = of_transformers(source, TOKENS, sliding_window=4 * POSITIONS)
    assert np.abs(of_transformers(source, TOKENS) - without)[17:].max() > 0.5


def test_a_shared_embedding_is_stored_once(qwen2: Built):
    """Qwen2 ties input and output; int8 keeps the matrix in 8 bits, once."""
    import onnx

    graph = onnx.load(qwen2.out / "onnx-int8" / "model.onnx", load_external_data=False).graph
    shape = json.loads((qwen2.source / "config.json").read_text())
    table = shape["vocab_size"] * shape["hidden_size"]
    assert [int(np.prod(tensor.dims)) for tensor in graph.initializer].count(table) == 1
