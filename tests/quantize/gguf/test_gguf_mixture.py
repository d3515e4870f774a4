"""Mixtures of experts, and rows that 256-weight blocks do not fit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from quantize.children import run_child
from quantize.gguf.converter import export_f16
from quantize.gguf.imatrix import check_fit, compute
from quantize.gguf.imatrixfile import read_matrix
from quantize.gguf.quantize import quantize_gguf
from quantize.quality.tokens import Reference
from quantize.recipes import find_recipe
from runtimes.models.gguf import read_header
from tests.quantize.shapes import SHAPES, make_random_model

_USED = 2  # experts for each token


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixtral")
    model = make_random_model(folder / "model", SHAPES["mixtral"])
    export_f16(model, folder / "f16.gguf", Reference([], [], []), folder)
    return folder / "f16.gguf"


def test_each_expert_has_the_inputs_that_were_sent_to_it(mixtral: Path, tmp_path: Path):
    """The router, a matrix like others, sees every token that the experts share out."""
    text, out = tmp_path / "words.txt", tmp_path / "m.gguf"
    text.write_text("The quick brown fox jumps over the lazy dog. 12 + 30 = 42\n" * 30)
    run_child(partial(compute, mixtral, text, out, 1), what="", work=tmp_path)
    matrix = read_matrix(out)
    router = matrix.entries["blk.0.ffn_gate_inp.weight"]
    for name in ("gate", "up"):
        experts = matrix.entries[f"blk.0.ffn_{name}_exps.weight"]
        assert experts.sums.shape == (4, 256)
        assert experts.counts.sum() == _USED * router.counts[0]
        np.testing.assert_allclose(experts.sums.sum(axis=0), _USED * router.sums[0], rtol=1e-5)
    down = matrix.entries["blk.0.ffn_down_exps.weight"]
    assert down.sums.shape == (4, 192)
    assert down.counts.tolist() == matrix.entries["blk.0.ffn_up_exps.weight"].counts.tolist()
    assert check_fit(matrix, mixtral, out) == []
    quantize_gguf(mixtral, tmp_path / "small.gguf", find_recipe("q2_k_s"), tmp_path, out)
    types = {info.name: info.type_name for info in read_header(tmp_path / "small.gguf").tensors}
    assert types["blk.0.ffn_up_exps.weight"] == "Q2_K"


def test_tensors_whose_rows_do_not_fit_the_asked_type_are_named(mixtral: Path, tmp_path: Path):
    out = tmp_path / "out.gguf"
    overrides = {"ffn_.*_exps": "q4_k"}
    notes = quantize_gguf(mixtral, out, find_recipe("q8_0"), tmp_path, overrides=overrides)
    types = {info.name: info.type_name for info in read_header(out).tensors}
    assert types["blk.0.ffn_up_exps.weight"] == "Q4_K"
    assert types["blk.0.ffn_down_exps.weight"] == "Q5_0"
    assert notes[-1].startswith(
        "1 of 3 tensors with a type of their own did not get it, such as"
        " blk.0.ffn_down_exps.weight: q5_0 instead of q4_k"
    )
