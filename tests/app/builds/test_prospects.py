"""What is told of recipes' files before they are built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.builds.prospects import bare_prospects, prospects
from app.builds.settings import offered
from quantize.manifest import load_manifest, write_manifest
from quantize.recipes import RECIPES
from quantize.source import open_source
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings


def test_without_a_model_figures_are_nominal() -> None:
    told = bare_prospects()
    assert told.recipes.keys() == {one.name for one in offered()} < RECIPES.keys()
    card = told.recipes["q4_k_m"]
    assert (card.size_text, card.bits_text) == ("", "~4.9 bits")
    assert card.quality_text == "KL 0.031 on Llama-3-8B"
    assert told.recipes["onnx-int4"].quality_text == "not measured yet"
    assert told.recipes["f16"].quality_text == "not quantized"
    assert told.fits("q4_k_m") is None


def test_memory_is_what_the_built_file_then_needs(
    pebble: Path, pebble_built: Path, tmp_path: Path
) -> None:
    told = prospects(open_source(str(pebble)), tmp_path / "new")
    for name in ("q4_k_m", "q8_0"):
        file = read_model(pebble_built / f"pebble-{name}.gguf")
        needs = estimate(file, RunnerSettings(slots=1)).total
        assert told.recipes[name].memory == pytest.approx(needs, rel=0.1)
        assert told.fits(name)
    assert not replace(told, memory_free=1000).fits("q8_0")
    assert told.total(("q4_k_m", "q8_0")) == sum(
        told.recipes[name].bytes or 0 for name in ("q4_k_m", "q8_0")
    )


def test_a_file_of_an_older_program_has_its_real_bits(
    pebble: Path, pebble_built: Path, tmp_path: Path
) -> None:
    """Its manifest does not tell them: never the nominal ones."""
    manifest = load_manifest(pebble_built)
    bits = {entry.recipe: entry.bits_per_weight for entry in manifest.files}
    older = tuple(replace(entry, bits_per_weight=None) for entry in manifest.files)
    write_manifest(tmp_path, replace(manifest, files=older))
    told = prospects(open_source(str(pebble)), tmp_path)
    card = told.recipes["onnx-int4"]
    assert card.there
    assert card.bits == pytest.approx(bits["onnx-int4"], rel=0.001)
    assert card.bits_text != f"{RECIPES['onnx-int4'].bits_per_weight:.1f} bits"


def test_a_model_whose_shapes_are_not_known_has_estimates(pebble: Path, tmp_path: Path) -> None:
    source = replace(open_source(str(pebble)), weights=())  # as one on the hub
    card = prospects(source, tmp_path).recipes["q8_0"]
    assert (card.exact, card.size_text, card.bits_text) == (False, "~5.2 MB", "~8.5 bits")
