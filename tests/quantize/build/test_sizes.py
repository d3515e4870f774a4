"""What is told of a file's size before it is built, against the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantize.build.preflight import predict_sizes
from quantize.gguf.converter import export_f16
from quantize.gguf.quantize import quantize_gguf
from quantize.quality.tokens import Reference
from quantize.recipes import RECIPES, bits_per_weight
from quantize.source import open_source
from tests.quantize.shapes import SHAPES, make_random_model

_TOLD = 0.02  # what `predict_sizes` promises


def test_tensors_that_fall_back_are_counted(tmp_path: Path) -> None:
    """Rows of 288 weights are no multiple of 256, as K-types need; those of 128 for q1_0, which has
    nothing to fall back to, are all that is not told."""
    sides = {"hidden_size": 288, "intermediate_size": 544, "head_dim": 72}
    source = open_source(str(make_random_model(tmp_path / "narrow", SHAPES["llama"], **sides)))
    floats = tmp_path / "narrow-f16.gguf"
    export_f16(source.folder, floats, Reference([], [], [], [], [], None), tmp_path)
    recipes = [RECIPES[name] for name in ("q4_k_m", "q2_k", "q4_0", "f16")]
    told, again = predict_sizes(source), predict_sizes(open_source(str(floats)))
    assert "q1_0" not in told.keys() | again.keys()
    for recipe in recipes:
        out = tmp_path / f"{recipe.name}.gguf"
        quantize_gguf(floats, out, recipe, tmp_path)
        bits = bits_per_weight(out, source.parameters)
        for size in (told[recipe.name], again[recipe.name]):
            assert size.bits_per_weight == pytest.approx(bits, rel=0.001)
            assert size.bytes == pytest.approx(out.stat().st_size, rel=_TOLD)
    assert told["q4_k_m"].bits_per_weight > RECIPES["q4_k_m"].bits_per_weight + 0.5
