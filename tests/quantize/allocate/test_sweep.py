"""The Fisher information, a layer at a time, is what one backward pass of the whole model gives."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from quantize.children import run_child
from tests.quantize.allocate import sweeping
from tests.quantize.shapes import SHAPES, Shape, make_random_model

SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96}
# Tied and not, biases, scaled embeddings, matrices the other way round, experts.
MODELS: dict[str, tuple[Shape, dict[str, object]]] = {
    "llama": (SHAPES["llama"], {**SMALL, "tie_word_embeddings": True}),
    "qwen2": (SHAPES["qwen2"], SMALL),
    "half": (replace(SHAPES["llama"], dtype="bfloat16"), {**SMALL, "tie_word_embeddings": True}),
    "gemma3": (SHAPES["gemma3"], {}),
    "gpt2": (SHAPES["gpt2"], {"n_embd": 64}),
    "mixtral": (SHAPES["mixtral"], {"num_hidden_layers": 2}),
}
WINDOWS = [random.Random(n).choices(range(3, 250), k=24) for n in range(3)]


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_at_a_time_is_the_whole_at_once(name: str, tmp_path: Path):
    shape, settings = MODELS[name]
    model = make_random_model(tmp_path / name, shape, **settings)
    (tmp_path / "state").mkdir()
    call = partial(sweeping.both, model, WINDOWS, tmp_path / "state")
    whole, found = run_child(call, "sweeping", tmp_path, torch=True)
    # By their sums: names and the order of rows are GGUF's on one side.
    ours = sorted(float(fisher.sum(dtype=np.float64)) for _, fisher, _ in found.values())
    theirs = []
    for parameter, fisher in whole.items():
        if "gate_up" in parameter:
            half = fisher.shape[1] // 2
            theirs += [fisher[:, :half].sum(), fisher[:, half:].sum()]
        elif "wpe" not in parameter:  # learned positions, which llama.cpp keeps as they are
            theirs.append(fisher.sum())
    assert len(found) == len(theirs)
    np.testing.assert_allclose(ours, sorted(theirs), rtol=2e-3)
    assert all(weight.shape == fisher.shape for weight, fisher, _ in found.values())
    assert {key.split(".")[-2] for key in found} >= {"token_embd", "attn_output"}


def test_the_cost_of_8_bit_inputs_is_the_divergence_that_they_cause(tmp_path: Path):
    predicted, measured = run_child(
        partial(sweeping.rounding_of_one_linear), "rounding", tmp_path, torch=True
    )
    assert predicted == pytest.approx(measured, rel=0.1)
