"""The exports compute what transformers computes, and quantization loses as much as it should."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from quantize.resolve import resolve
from runtimes.models.registry import read_model
from tests.quantize.conftest import Built, recipes_of
from tests.quantize.logits import Table, divergence, of_transformers, scored

POSITIONS = 64  # four times the sliding window of the random Gemma
TOKENS = random.Random(7).choices(range(3, 1000), k=POSITIONS)

_original = cache(lambda source: of_transformers(source, TOKENS))


@cache
def _built(built: Built, recipe: str) -> Table:
    return scored(resolve(built.out, recipe=recipe), TOKENS)


def test_exports_agree_with_transformers_and_files_have_the_size_of_their_bits(built: Built):
    """At every one of 64 positions, over the whole vocabulary; the distributions are far from flat
    and from each other, so that the comparison could fail."""
    original = _original(built.source)
    for recipe in ("f16", "onnx-fp32"):
        export = _built(built, recipe)
        assert export.shape == original.shape
        assert np.abs(export - original).max() <= 0.05
    assert np.abs(original[1:] - original[:-1]).max(axis=-1).min() > 1
    assert np.ptp(original) > 5
    full = (built.source / "model.safetensors").stat().st_size
    made = recipes_of(built.source.name).split(",")
    for recipe, share in {"q8_0": 0.32, "q4_k_m": 0.23, "onnx-int8": 0.33}.items():
        if recipe in made:
            assert read_model(resolve(built.out, recipe=recipe)).nbytes < share * full


def test_the_sliding_window_matters(builds: Callable[[str], Built]):
    source, window = builds("gemma3").source, 16
    without = of_transformers(source, TOKENS, sliding_window=4 * POSITIONS)
    assert np.abs(_original(source) - without)[window + 1 :].max() > 0.5


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_quantization_loses_a_little_and_fewer_bits_more(builds: Callable[[str], Built], name: str):
    built = builds(name)
    for eight, four in (("q8_0", "q4_k_m"), ("onnx-int8", "onnx-int4")):
        lost = divergence(_original(built.source), _built(built, eight))
        assert 0 < lost < 0.02
        if name == "qwen2":
            assert lost < divergence(_original(built.source), _built(built, four)) < 0.3


def test_a_shared_embedding_is_stored_once(qwen2: Built):
    """Qwen2 ties input and output; int8 keeps the matrix in 8 bits, once."""
    import onnx

    graph = onnx.load(qwen2.out / "onnx-int8" / "model.onnx", load_external_data=False).graph
    shape = json.loads((qwen2.source / "config.json").read_text())
    table = shape["vocab_size"] * shape["hidden_size"]
    assert [int(np.prod(tensor.dims)) for tensor in graph.initializer].count(table) == 1
