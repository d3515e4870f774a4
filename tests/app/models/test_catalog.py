"""Files that a picker lists, and what it says of each."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.models import library
from app.models.catalog import (
    ModelEntry,
    Origin,
    catalog,
    details,
    entry_of,
    fit,
    quality_of,
    quality_order,
    quality_text,
    size_of,
    speed_of,
    state_of,
    type_of,
    with_bits,
)
from app.models.library import model_file
from quantize.manifest import (
    Fidelity,
    FileSpeeds,
    Perplexity,
    Quality,
    load_manifest,
    write_manifest,
)
from runtimes.errors import ModelError
from runtimes.models.registry import read_model
from runtimes.planner import known
from runtimes.planner.candidates import PlanTask
from runtimes.planner.plan import Alternative, Figures, Plan
from runtimes.settings import RunnerSettings
from tests.app.models.kept import keep


@pytest.fixture(autouse=True)
def _no_demo(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No demo model that happens to be built."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.models.catalog._ROOT", tmp_path)


@pytest.fixture
def built(pebble_built: Path, tmp_path: Path) -> Path:
    """A copy of Pebble's files."""
    return Path(shutil.copytree(pebble_built, tmp_path / "built"))


def by_recipe(*given: Path) -> dict[str, ModelEntry]:
    return {entry.recipe: entry for entry in catalog(given)}


def test_a_folder_that_quantize_wrote(built: Path) -> None:
    found = by_recipe(built)
    assert sorted(found) == ["onnx-int4", "onnx-int8", "q4_k_m", "q8_0"]
    for recipe, entry in found.items():
        assert (entry.label, entry.origin) == (f"pebble · {recipe}", Origin.BUILT)
        assert entry.broken is None
        # What the entry says is what loads it.
        assert model_file(entry.model, entry.options).path == entry.path
    four, listed = found["q4_k_m"], load_manifest(built).entry("q4_k_m")
    assert listed is not None
    bits = listed.bits_per_weight
    assert type_of(four) == ("gguf 4-bit" if bits is None else f"gguf {bits:.1f} bits")
    assert (four.bits, four.bytes) == (4, (built / "pebble-q4_k_m.gguf").stat().st_size)
    assert "MB" in size_of(four)
    for words, recipes in (
        (["ONNX", "4-bit"], {"onnx-int4"}),
        (["pebble"], set(found)),
        (["pebble", "nothing"], set()),
    ):
        assert {e.recipe for e in found.values() if e.matches(words)} == recipes
    room = fit(four)
    assert room.fits
    assert room.context == 1024  # the model's own limit
    assert room.needs > four.bytes
    small = replace(room, free=room.needs - 1)
    assert [state_of(four, one) for one in (room, small, None)] == ["fits", "too big", ""]
    four.path.write_bytes(b"GGUF")
    with pytest.raises(ModelError):
        fit(four)


def fidelity(kl: float) -> Fidelity:
    return Fidelity(Perplexity(9.5, 0.1, 1000, "text", ""), kl, 0.001, 0.2, 0.93)


def measured(built: Path, **figures: object) -> Path:
    """Let the manifest say these figures of the file of q8_0."""
    manifest = load_manifest(built)
    entry = manifest.entry("q8_0")
    assert entry is not None
    write_manifest(built, manifest.with_entry(replace(entry, **figures)))  # type: ignore[arg-type]
    return built / entry.path


def test_figures_of_the_manifest(built: Path) -> None:
    measured(built, quality=Quality(0.875, 16), fidelity=None)
    found = by_recipe(built)["q8_0"]
    assert "87.5% of 16 answers right" in "\n".join(details(found, None))
    near = replace(found, fidelity=fidelity(0.0412))
    unmeasured = replace(found, speed=None, quality=None, fidelity=None, parity=None)
    assert speed_of(unmeasured) == ""
    assert "`ingot plan` does it" in "\n".join(details(unmeasured, None))
    some = [unmeasured, found, replace(found, fidelity=fidelity(0.5)), near]
    ordered = [quality_of(one) for one in sorted(some, key=quality_order)]
    assert ordered == ["KL 0.041", "KL 0.500", "87.5%", ""]
    for others, busy in ((0.5, True), (0.0, False)):
        speed = FileSpeeds(200.0, 50.0, 90.0, ranges={"decode_tps_1": (49.0, 51.0)}, others=others)
        lines = details(replace(found, speed=speed), None)
        assert any("(a busy machine)" in line for line in lines) == busy


def test_the_quality_of_one_file(built: Path, tmp_path: Path) -> None:
    path = measured(built, quality=None, fidelity=fidelity(0.0412), bits_per_weight=8.516)
    size = path.stat().st_size
    assert quality_text(entry_of(path)) == "8.5 bits · KL 0.041"
    # In the library.
    model = library.Model("org/pebble")
    shutil.copytree(built, model.folder)
    kept = library.Kept("q8_0", "gguf", path.name, "c", {path.name: size}, {})
    library.write(replace(model, builds=(kept,)))
    assert quality_text(entry_of(model.folder / path.name)) == "8.5 bits · KL 0.041"
    # By itself: the same bits, read from the file, and nothing measured.
    alone = entry_of(Path(shutil.copy(path, tmp_path / "alone.gguf")))
    assert with_bits(alone).bits_per_weight == pytest.approx(8.516, abs=0.01)
    assert (alone.bytes, quality_text(alone)) == (size, "8.5 bits")
    assert type_of(with_bits(alone)) == "gguf 8.5 bits"
    # Another file in its place: what was measured is not said of it.
    with path.open("ab") as file:
        file.write(b"more")
    assert quality_text(entry_of(path)) == "8.5 bits"


def test_what_was_measured_here(built: Path, home: Path) -> None:
    """The chosen file and the others of the same plan, until a file is replaced."""
    model = read_model(built / "pebble-q4_k_m.gguf")
    task = PlanTask("chat", "balanced", cores=2, free=10**10)
    others = (
        Alternative("onnx-int4", "onnx", RunnerSettings(), figures=Figures(90.0, {1: 30.0})),
        Alternative("pebble-q8_0.gguf", "llamacpp", RunnerSettings(), failure="too slow"),
    )
    settings = RunnerSettings(slots=1, context=1024, threads=2, gpu_layers=0)
    about = ("chat", "balanced", model.runtime, str(model.path), settings, 1)
    plan = Plan(*about, Figures(100.0, {1: 40.0}), alternatives=others)
    known.save_plan([model], task, plan)
    found = by_recipe(built)
    chosen, other = found["q4_k_m"].measured, found["onnx-int4"].measured
    assert chosen is not None
    assert other is not None
    assert (chosen.chosen, other.chosen) == (True, False)
    assert (speed_of(found["q4_k_m"]), speed_of(found["onnx-int4"])) == ("40.0", "30.0")
    said = "\n".join(details(found["q4_k_m"], None))
    assert "40.0 tok/s decode" in said
    assert f"ingot plan, {time.strftime('%Y-%m-%d', time.localtime(chosen.made))}" in said
    assert found["q8_0"].measured is None
    later = time.time() + 5
    os.utime(built / "onnx-int4" / "model.onnx", (later, later))
    assert by_recipe(built)["onnx-int4"].measured is None


def test_what_cannot_be_used_is_listed_with_the_reason(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (built / "pebble-q8_0.gguf").write_bytes(b"cut off")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    monkeypatch.setattr("app.models.catalog.find_installed", lambda runtime: runtime != "onnx")
    found = catalog([built, tmp_path / "damaged", tmp_path / "absent"])
    broken = {entry.label.removeprefix("pebble · "): entry for entry in found if entry.broken}
    for label, why in (
        ("absent", "no model is there"),
        ("damaged", "not JSON"),
        ("q8_0", "was cut off or changed"),
        ("onnx-int4", "ONNX Runtime is not installed"),
    ):
        entry = broken.pop(label)
        assert why in str(entry.broken)
        assert state_of(entry, None) == "broken"
        assert any("Cannot be used" in line for line in details(entry, None))
    assert broken.keys() == {"onnx-int8"}


def test_loose_files_and_the_library(pebble_built: Path, tmp_path: Path) -> None:
    eight = pebble_built / "pebble-q8_0.gguf"
    names = {"tiny-Q4_K_M": 4, "tiny-BF16": 16, "odd": None}
    (tmp_path / "loose").mkdir()
    for name in names:
        shutil.copyfile(eight, tmp_path / "loose" / f"{name}.gguf")
    onnx = Path(shutil.copytree(pebble_built / "onnx-int8", tmp_path / "cpu-int4-block-32"))
    loose = catalog([tmp_path / "loose", onnx])
    assert {e.name: e.bits for e in loose} == names | {"cpu-int4-block-32": 4}
    files = {"Q4_K_M": {"tiny-Q4_K_M.gguf": eight.read_bytes()}, "Q8_0": {"gone.gguf": b""}}
    model = keep("org/tiny", files)
    (model.folder / "gone.gguf").unlink()
    (keep("org/other", {}).folder / "library.json").write_text("{")
    found = {entry.model: entry for entry in catalog()}
    assert sorted(found) == ["org/other", "org/tiny:Q4_K_M", "org/tiny:Q8_0"]
    one = found["org/tiny:Q4_K_M"]
    assert (one.origin, one.bits, one.broken) == (Origin.LIBRARY, 4, None)
    for name in ("org/tiny:Q8_0", "org/other"):
        assert f"`ingot pull {name}`" in str(found[name].broken)
    assert all(model_file(e.model, e.options).path == e.path for e in (*loose, one))
