from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import pytest

from app.builds.prospects import foresee
from app.builds.settings import Settings
from quantize.build.preflight import known_sizes, memory_parts, space_parts
from quantize.build.workspace import Workspace
from quantize.errors import SourceError
from quantize.options import Options, SourceOptions
from quantize.recipes import RECIPES
from quantize.source import open_source
from tests.quantize.hub.fakehub import FakeHub


def test_it_is_what_the_command_will_check(pebble: Path, tmp_path: Path) -> None:
    found = foresee(Settings(str(pebble), ("q8_0", "onnx-int4"), out=str(tmp_path / "new")))
    recipes = (RECIPES["q8_0"], RECIPES["onnx-int4"])
    options = Options(SourceOptions(str(pebble)), recipes)
    source = open_source(str(pebble))
    assert found.disk == space_parts(source, recipes, options, known_sizes(source))
    assert found.memory == memory_parts(source, recipes, options)
    assert (found.source.parameters, found.source.bytes) == (source.parameters, source.bytes)
    assert found.problems == ()
    assert 0 < found.disk_needed < found.disk_free
    assert 0 < found.memory_needed < found.memory_free


def test_it_follows_the_choice(pebble: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "new")
    small = foresee(Settings(str(pebble), ("q8_0",), out=out, measure=False))
    assert small.memory == {}
    measured = foresee(Settings(str(pebble), ("q8_0",), out=out))
    more = foresee(Settings(str(pebble), ("q8_0", "f16"), out=out))
    assert small.disk_needed < measured.disk_needed < more.disk_needed


def test_files_that_are_there_cost_nothing(pebble: Path, pebble_built: Path) -> None:
    found = foresee(Settings(str(pebble), ("q8_0", "q4_k_m"), out=str(pebble_built)))
    assert found.there == ("q8_0", "q4_k_m")
    assert found.disk == {}
    again = foresee(Settings(str(pebble), ("q8_0",), out=str(pebble_built), fresh=True))
    assert again.disk_needed > 0
    assert "there already: q8_0, q4_k_m" in "\n".join(found.lines())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
def test_a_run_that_is_at_work_there_is_told(pebble: Path, tmp_path: Path) -> None:
    settings = Settings(str(pebble), ("q8_0",), out=str(tmp_path / "new"))
    with Workspace(tmp_path / "new"):
        found = foresee(settings)
        assert found.builder == os.getpid()
        ((field, said),) = found.wrong
        assert field == "out"
        assert f"process {os.getpid()} builds into" in said
    found = foresee(settings)
    assert (found.builder, found.problems) == (None, ())


@pytest.fixture
def huge(pebble: Path, tmp_path: Path) -> Path:
    """A model of 2 TB whose weights are a hole: a true header, and no blocks on the disk."""
    folder = tmp_path / "huge"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((pebble / "tokenizer.json").read_bytes())
    config = json.loads((pebble / "config.json").read_text())
    side = 1_000_000
    config |= {"hidden_size": side, "vocab_size": side}
    (folder / "config.json").write_text(json.dumps(config))
    size = 2 * side * side
    tensor = {"dtype": "F16", "shape": [side, side], "data_offsets": [0, size]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return folder


def test_what_does_not_fit_is_told_with_the_sums(huge: Path, tmp_path: Path) -> None:
    found = foresee(Settings(str(huge), ("q8_0", "onnx-int8"), out=str(tmp_path / "o")))
    disk, memory = found.problems
    assert "GB free to build in" in disk
    assert found.disk_needed > found.disk_free
    assert "building ONNX files needs about" in memory
    assert found.memory_needed > found.memory_free
    assert [field for field, _ in found.wrong] == ["out", ""]


def test_wishes_that_do_not_fit_together_are_told(float_gguf: Path, tmp_path: Path) -> None:
    found = foresee(Settings(str(float_gguf), ("onnx-int4", "iq1_s"), out=str(tmp_path / "o")))
    assert any("cannot be made from a GGUF file" in problem for problem in found.problems)
    assert any("iq1_s cannot be made without" in problem for problem in found.problems)
    assert {field for field, _ in found.wrong} == {"imatrix", "recipes"}


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no config\.json"):
        foresee(Settings(str(tmp_path)))


def test_looking_loads_no_library_of_models(pebble: Path) -> None:
    import subprocess

    code = (
        "import sys; from app.builds.prospects import foresee; from app.builds.settings import *;"
        f"foresee(Settings({str(pebble)!r}));"
        "print([m for m in ('torch', 'transformers', 'onnx', 'llama_cpp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_model_on_the_hub_is_told_without_a_download(
    pebble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub()
    try:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
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
    finally:
        hub.close()
