"""Forecasts: files before they are built, and what a run needs."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.builds.prospects import bare_prospects, foresee, prospects
from app.builds.run import Settings, offered
from quantize.build.preflight import known_sizes, memory_parts, space_parts
from quantize.errors import SourceError
from quantize.manifest import load_manifest, write_manifest
from quantize.options import Options, SourceOptions
from quantize.recipes import RECIPES
from quantize.source import open_source
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings
from tests.quantize.hub.fakehub import FakeHub


def test_without_a_model_figures_are_nominal() -> None:
    told = bare_prospects()
    assert told.recipes.keys() == {one.name for one in offered()} < RECIPES.keys()
    card = told.recipes["q4_k_m"]
    assert (card.size_text, card.bits_text) == ("", "~4.9 bits")
    for name, quality in (
        ("q4_k_m", "KL 0.031 on Llama-3-8B"),
        ("onnx-int4", "not measured yet"),
        ("f16", "not quantized"),
    ):
        assert told.recipes[name].quality_text == quality
    assert told.fits("q4_k_m") is None


def test_figures_of_a_model(pebble: Path, pebble_built: Path, tmp_path: Path) -> None:
    source = open_source(str(pebble))
    told = prospects(source, tmp_path / "new")
    for name in ("q4_k_m", "q8_0"):  # memory is what the built file then needs
        file = read_model(pebble_built / f"pebble-{name}.gguf")
        needs = estimate(file, RunnerSettings(slots=1)).total
        assert told.recipes[name].memory == pytest.approx(needs, rel=0.1)
        assert told.fits(name)
    assert not replace(told, memory_free=1000).fits("q8_0")
    sizes = [told.recipes[name].bytes or 0 for name in ("q4_k_m", "q8_0")]
    assert told.total(("q4_k_m", "q8_0")) == sum(sizes)
    # The manifest of an older program does not tell bits: they are the real ones all the same.
    manifest = load_manifest(pebble_built)
    entry = manifest.entry("onnx-int4")
    assert entry is not None
    older = replace(manifest, files=(replace(entry, bits_per_weight=None),))
    write_manifest(tmp_path, older)
    card = prospects(source, tmp_path).recipes["onnx-int4"]
    assert card.there
    assert card.bits == pytest.approx(entry.bits_per_weight, rel=0.001)
    # One on the hub, whose shapes are not known, has estimates.
    card = prospects(replace(source, weights=()), tmp_path).recipes["q8_0"]
    assert (card.exact, card.size_text, card.bits_text) == (False, "~5.2 MB", "~8.5 bits")


def test_a_run_needs_what_the_command_will_check(
    pebble: Path, pebble_built: Path, tmp_path: Path
) -> None:
    settings = Settings(str(pebble), ("q8_0", "onnx-int4"), out=str(tmp_path / "new"))
    found = foresee(settings)
    recipes = (RECIPES["q8_0"], RECIPES["onnx-int4"])
    options = Options(SourceOptions(str(pebble)), recipes)
    source = open_source(str(pebble))
    assert found.disk == sum(space_parts(source, recipes, options, known_sizes(source)).values())
    assert found.memory == max(memory_parts(source, recipes, options).values())
    assert (found.wrong, found.disk < found.disk_free) == ((), True)
    small = foresee(replace(settings, recipes=("q8_0",), measure=False))
    assert (small.memory, 0 < small.disk < found.disk) == (0, True)
    # Files that are there cost nothing.
    built = replace(settings, recipes=("q8_0", "q4_k_m"), out=str(pebble_built))
    there = foresee(built)
    assert (there.there, there.disk) == (("q8_0", "q4_k_m"), 0)
    assert "there already: q8_0, q4_k_m" in "\n".join(there.lines())
    assert foresee(replace(built, fresh=True)).disk > 0


@pytest.fixture
def huge(pebble: Path, tmp_path: Path) -> Path:
    """A model of 2 TB whose weights are a hole: a true header, and no blocks on the disk."""
    folder, side = tmp_path / "huge", 1_000_000
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((pebble / "tokenizer.json").read_bytes())
    config = json.loads((pebble / "config.json").read_text())
    config |= {"hidden_size": side, "vocab_size": side}
    (folder / "config.json").write_text(json.dumps(config))
    size = 2 * side * side
    tensor = {"dtype": "F16", "shape": [side, side], "data_offsets": [0, size]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return folder


def test_what_would_be_refused(huge: Path, float_gguf: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "o")
    found = foresee(Settings(str(huge), ("q8_0", "onnx-int8"), out=out))
    disk, memory = found.wrong
    assert (disk[0], memory[0]) == ("out", "")
    assert "GB free to build in" in disk[1]
    assert "building ONNX files needs about" in memory[1]
    assert found.disk > found.disk_free
    told = dict(foresee(Settings(str(float_gguf), ("onnx-int4", "iq1_s"), out=out)).wrong)
    assert told.keys() == {"imatrix", "recipes"}
    assert "cannot be made from a GGUF file" in told["recipes"]
    assert "iq1_s cannot be made without" in told["imatrix"]
    with pytest.raises(SourceError, match=r"no config\.json"):
        foresee(Settings(str(tmp_path)))


def test_looking_loads_no_library_of_models(pebble: Path) -> None:
    code = (
        "import sys; from app.builds.prospects import foresee; from app.builds.run import *;"
        f"foresee(Settings({str(pebble)!r}));"
        "print([m for m in ('torch', 'transformers', 'onnx', 'llama_cpp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_model_on_the_hub_is_told_without_a_download(
    hub: FakeHub, pebble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    files = {name: (pebble / name).read_bytes() for name in names}
    hub.add("org/pebble", {**files, "other.bin": b"x" * 1000})
    found = foresee(Settings("org/pebble", ("q8_0",), measure=False))
    assert hub.sent("model.safetensors") == []
    assert found.download == sum(map(len, files.values()))
    assert found.out == tmp_path / "pebble-built"
    # The header of the weights is taken for weights: a few kilobytes.
    assert abs(found.source.parameters / open_source(str(pebble)).parameters - 1) < 0.01
    assert f"Download {found.download / 1e6:.1f}"[:12] in "\n".join(found.lines())
