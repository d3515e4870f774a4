from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from quantize.build.preflight import (
    known_sizes,
    memory_parts,
    predict_sizes,
    require_memory,
    space_parts,
)
from quantize.gguf.converter import export_f16
from quantize.gguf.quantize import quantize_gguf
from quantize.manifest import load_manifest
from quantize.options import MeasureOptions, Options, SourceOptions
from quantize.quality.tokens import Reference
from quantize.recipes import RECIPES, bits_per_weight
from quantize.source import SourceModel, open_source
from runtimes.errors import OutOfMemoryError
from tests.quantize.shapes import SHAPES, make_random_model

BILLION = 1_000_000_000


def _source(parameters: int, tmp_path: Path) -> SourceModel:
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 50000}}')
    return SourceModel(
        tmp_path, "LlamaForCausalLM", (), parameters, "model", tmp_path, bytes=2 * parameters
    )


def _options(*, measure: bool = False, lora: str | None = None) -> Options:
    return Options(SourceOptions("m", lora=lora), (), measure=MeasureOptions(enabled=measure))


def test_space_counts_the_export_every_output_and_what_is_measured_with(tmp_path: Path):
    source, plain = _source(BILLION, tmp_path), _options()
    q4 = sum(space_parts(source, [RECIPES["q4_k_m"]], plain, {}).values())
    assert 2.6e9 < q4 < 3.0e9  # 2 GB export, 0.6 GB file
    both = space_parts(source, [RECIPES["q4_k_m"], RECIPES["q8_0"]], plain, {})
    assert sum(both.values()) - q4 > 1e9
    onnx = sum(space_parts(source, [RECIPES["onnx-int4"]], plain, {}).values())
    assert onnx < q4
    measured = space_parts(source, [RECIPES["onnx-int4"]], _options(measure=True), {})
    assert sum(measured.values()) - onnx > 4096 * 50_000 * 2
    merged = space_parts(source, [RECIPES["onnx-int4"]], _options(lora="l"), {})
    assert sum(merged.values()) - onnx > 2e9


def test_a_files_space_is_what_it_will_have(pebble: Path, pebble_built: Path) -> None:
    """Small models have more bits a weight than a recipe's name says."""
    source, entries = open_source(str(pebble)), load_manifest(pebble_built).files
    sizes = known_sizes(source)
    assert sizes.keys() == RECIPES.keys()
    parts = space_parts(source, [RECIPES[e.recipe] for e in entries], _options(), sizes)
    for entry in entries:
        told = sizes[entry.recipe]
        assert told.bytes == pytest.approx(entry.bytes, rel=0.02)  # as `predict_sizes` promises
        assert told.bits_per_weight == pytest.approx(entry.bits_per_weight, rel=0.001)
        assert entry.bytes <= parts[entry.recipe] <= 1.1 * entry.bytes, entry.recipe
    # The largest graph that is made anew lies there twice.
    onnx = [entry.bytes for entry in entries if entry.format == "onnx"]
    assert parts["scratch"] >= max(onnx)


def test_memory_is_asked_for_before_any_work(tmp_path: Path):
    available = psutil.virtual_memory().available
    huge = replace(_source(available, tmp_path), bytes=2 * available)
    with pytest.raises(OutOfMemoryError, match=r"building ONNX files needs about .* GB .* free"):
        require_memory(memory_parts(huge, [RECIPES["onnx-int4"]], _options(measure=True)))
    require_memory(memory_parts(huge, [RECIPES["q4_k_m"]], _options()))
    with pytest.raises(OutOfMemoryError, match="running the float model"):
        require_memory(memory_parts(huge, [RECIPES["q4_k_m"]], _options(measure=True)))


_TOLD = 0.02  # what `predict_sizes` promises


def test_tensors_that_fall_back_are_counted(tmp_path: Path) -> None:
    """Rows of 288 weights are no multiple of 256, as K-types need; those of 128 for q1_0, which has
    nothing to fall back to, are all that is not told."""
    sides = {"hidden_size": 288, "intermediate_size": 544, "head_dim": 72}
    source = open_source(str(make_random_model(tmp_path / "narrow", SHAPES["llama"], **sides)))
    floats = tmp_path / "narrow-f16.gguf"
    export_f16(source.folder, floats, Reference([], [], []), tmp_path)
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
