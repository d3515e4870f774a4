"""What a picker lists, and what it says of each file."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.compare.run import first_choice
from app.models import library
from app.models.catalog import (
    FileQuality,
    ModelEntry,
    Origin,
    catalog,
    details,
    entry_of,
    file_quality,
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
from app.models.library import model_file, note_loaded, note_used, recently_used
from quantize.manifest import (
    Fidelity,
    FileSpeeds,
    Perplexity,
    Quality,
    load_manifest,
    write_manifest,
)
from runtimes.errors import ModelError
from runtimes.machine.state_file import save_state
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.planner import known
from runtimes.planner.candidates import PlanTask
from runtimes.planner.plan import Alternative, Figures, Plan
from runtimes.settings import RunnerSettings

RECIPES = ["onnx-int4", "onnx-int8", "q4_k_m", "q8_0"]


@pytest.fixture(autouse=True)
def _no_demo(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No demo model that happens to be built."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.models.catalog._ROOT", tmp_path)


@pytest.fixture
def built(pebble_built: Path, tmp_path: Path) -> Path:
    """A copy of Pebble's files."""
    return Path(shutil.copytree(pebble_built, tmp_path / "built"))


def by_recipe(entries: list[ModelEntry]) -> dict[str, ModelEntry]:
    return {entry.recipe: entry for entry in entries}


def test_a_folder_that_quantize_wrote(built: Path):
    found = by_recipe(catalog([built]))
    assert sorted(found) == RECIPES
    for recipe, entry in found.items():
        assert entry.label == f"pebble · {recipe}"
        assert entry.origin is Origin.BUILT
        assert entry.broken is None
        # What the entry says is what loads it.
        assert model_file(entry.model, entry.options).path == entry.path
    four = found["q4_k_m"]
    listed = load_manifest(built).entry("q4_k_m")
    assert listed is not None
    bits = listed.bits_per_weight
    assert bits is None or 4.5 < bits < 7
    assert type_of(four) == ("gguf 4-bit" if bits is None else f"gguf {bits:.1f} bits")
    assert four.bits == 4
    assert four.bytes == (built / "pebble-q4_k_m.gguf").stat().st_size
    assert "MB" in size_of(four)


def fidelity(kl: float) -> Fidelity:
    return Fidelity(Perplexity(9.5, 0.1, 1000, "text", ""), kl, 0.001, 0.2, 0.93)


def measured(built: Path, recipe: str, **figures: object) -> None:
    """Let the manifest say these figures of one of its files."""
    manifest = load_manifest(built)
    entry = manifest.entry(recipe)
    assert entry is not None
    write_manifest(built, manifest.with_entry(replace(entry, **figures)))  # type: ignore[arg-type]


def test_figures_of_the_manifest(built: Path):
    measured(built, "q8_0", quality=Quality(0.875, 16), fidelity=None)
    found = by_recipe(catalog([built]))["q8_0"]
    assert quality_of(found) == "87.5%"
    assert any("87.5% of 16 answers right" in line for line in details(found, None))
    near = replace(found, fidelity=fidelity(0.0412))
    assert quality_of(near) == "KL 0.041"
    unmeasured = replace(found, speed=None, quality=None, fidelity=None, parity=None)
    assert (speed_of(unmeasured), quality_of(unmeasured)) == ("", "")
    assert "`ingot plan` does it" in "\n".join(details(unmeasured, None))
    ordered = sorted([unmeasured, found, replace(found, fidelity=fidelity(0.5)), near],
                     key=quality_order)  # fmt: skip
    assert [quality_of(one) for one in ordered] == ["KL 0.041", "KL 0.500", "87.5%", ""]


def test_the_quality_of_one_file(built: Path, tmp_path: Path):
    measured(built, "q8_0", quality=None, fidelity=fidelity(0.0412), bits_per_weight=8.516)
    path = built / "pebble-q8_0.gguf"
    found = file_quality(entry_of(path))
    size = path.stat().st_size
    assert found == FileQuality(size, 8.516, kl=0.0412, accuracy=None)
    assert quality_text(found) == "8.5 bits · KL 0.041"

    # By itself: the same bits, read from the file, and nothing measured.
    alone = Path(shutil.copy(path, tmp_path / "alone.gguf"))
    loose = file_quality(entry_of(alone))
    assert loose.bits == pytest.approx(8.516, abs=0.01)
    assert (loose.bytes, quality_text(loose)) == (size, "8.5 bits")
    assert type_of(with_bits(entry_of(alone))) == "gguf 8.5 bits"

    # Another file in its place: what was measured is not said of it.
    with path.open("ab") as file:
        file.write(b"more")
    assert quality_text(file_quality(entry_of(path))) == "8.5 bits"


def test_the_quality_of_a_pulled_file(built: Path):
    measured(built, "q8_0", quality=None, fidelity=fidelity(0.0021), bits_per_weight=8.516)
    model = library.Model("org/pebble-GGUF")
    shutil.copytree(built, model.folder)
    file = model.folder / "pebble-q8_0.gguf"
    sizes = {file.name: file.stat().st_size}
    kept = library.Kept("q8_0", "gguf", file.name, "c", sizes, {})
    library.write(replace(model, builds=(kept,)))
    assert quality_text(file_quality(entry_of(file))) == "8.5 bits · KL 0.0021"


def test_a_speed_from_a_busy_machine_says_so(built: Path):
    found = by_recipe(catalog([built]))["q8_0"]
    for others, busy in ((0.5, True), (0.0, False)):
        speed = FileSpeeds(200.0, 50.0, 90.0, ranges={"decode_tps_1": (49.0, 51.0)}, others=others)
        lines = details(replace(found, speed=speed), None)
        assert any("(a busy machine)" in line for line in lines) == busy


def plan_of(model: ModelFile, other: str) -> Plan:
    return Plan(
        workload="chat", profile="balanced", runtime=model.runtime, path=str(model.path),
        settings=RunnerSettings(slots=1, context=1024, threads=2, gpu_layers=0),
        memory=1, figures=Figures(100.0, {1: 40.0}),
        alternatives=(
            Alternative(other, "onnx", RunnerSettings(), figures=Figures(90.0, {1: 30.0})),
            Alternative("pebble-q8_0.gguf", "llamacpp", RunnerSettings(), failure="too slow"),
        ),
    )  # fmt: skip


def test_what_was_measured_here(built: Path):
    """The chosen file and the others of the same plan, until a file is replaced."""
    model = read_model(built / "pebble-q4_k_m.gguf")
    task = PlanTask("chat", "balanced", cores=2, free=10**10)
    known.save_plan([model], task, plan_of(model, "onnx-int4"))
    found = by_recipe(catalog([built]))
    chosen, other = found["q4_k_m"].measured, found["onnx-int4"].measured
    assert chosen is not None
    assert other is not None
    assert (chosen.chosen, other.chosen) == (True, False)
    assert (speed_of(found["q4_k_m"]), speed_of(found["onnx-int4"])) == ("40.0", "30.0")
    assert chosen.made == pytest.approx(time.time(), abs=60)
    day = time.strftime("%Y-%m-%d", time.localtime(chosen.made))
    said = "\n".join(details(found["q4_k_m"], None))
    assert "40.0 tok/s decode" in said
    assert f"ingot plan, {day}" in said
    assert found["q8_0"].measured is None
    later = time.time() + 5
    graph = built / "onnx-int4" / "model.onnx"
    os.utime(graph, (later, later))
    assert by_recipe(catalog([built]))["onnx-int4"].measured is None


def test_what_cannot_be_used_is_listed_with_the_reason(built: Path, tmp_path: Path):
    (built / "pebble-q8_0.gguf").write_bytes(b"cut off")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    found = catalog([built, tmp_path / "damaged", tmp_path / "absent"])
    broken = {entry.label: entry.broken for entry in found if entry.broken}
    assert sorted(broken) == ["absent", "damaged", "pebble · q8_0"]
    assert "was cut off or changed" in str(broken["pebble · q8_0"])
    assert "not JSON" in str(broken["damaged"])
    assert state_of(next(e for e in found if e.broken), None) == "broken"
    assert any("Cannot be used" in line for line in details(found[0], None))


def test_a_missing_runtime_is_told(built: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.models.catalog.find_installed", lambda runtime: runtime != "onnx")
    found = by_recipe(catalog([built]))
    assert "ONNX Runtime is not installed" in str(found["onnx-int4"].broken)
    assert found["q8_0"].broken is None


def test_loose_files(pebble_built: Path, tmp_path: Path):
    folder = tmp_path / "loose"
    folder.mkdir()
    for name in ("tiny-Q4_K_M.gguf", "tiny-BF16.gguf", "odd.gguf"):
        shutil.copyfile(pebble_built / "pebble-q8_0.gguf", folder / name)
    onnx = Path(shutil.copytree(pebble_built / "onnx-int8", tmp_path / "cpu-int4-block-32"))
    found = {entry.name: entry for entry in catalog([folder, onnx])}
    assert {name: entry.bits for name, entry in found.items()} == {
        "tiny-Q4_K_M": 4, "tiny-BF16": 16, "odd": None, "cpu-int4-block-32": 4
    }  # fmt: skip
    assert all(model_file(e.model, e.options).path == e.path for e in found.values())


def test_the_library(pebble_built: Path):
    model = library.Model("org/Tiny-GGUF")
    model.folder.mkdir(parents=True)
    file = model.folder / "tiny-Q4_K_M.gguf"
    shutil.copyfile(pebble_built / "pebble-q4_k_m.gguf", file)
    kept = library.Kept("Q4_K_M", "gguf", file.name, "c", {file.name: file.stat().st_size}, {})
    gone = library.Kept("Q8_0", "gguf", "tiny-Q8_0.gguf", "c", {"tiny-Q8_0.gguf": 10}, {})
    library.write(replace(model, builds=(kept, gone)))
    damaged = library.library_dir() / "org" / "other"
    damaged.mkdir(parents=True)
    (damaged / "library.json").write_text("{")
    found = {entry.model: entry for entry in catalog()}
    assert sorted(found) == ["org/Tiny-GGUF:Q4_K_M", "org/Tiny-GGUF:Q8_0", "org/other"]
    one = found["org/Tiny-GGUF:Q4_K_M"]
    assert (one.origin, one.bits, one.broken) == (Origin.LIBRARY, 4, None)
    assert model_file(one.model, one.options).path == one.path
    assert "`ingot pull org/Tiny-GGUF:Q8_0`" in str(found["org/Tiny-GGUF:Q8_0"].broken)
    assert "`ingot pull org/other`" in str(found["org/other"].broken)


def test_what_was_used_lately(built: Path, pebble_built: Path, tmp_path: Path):
    assert catalog() == []
    note_loaded(built / "onnx-int4")
    assert sorted(by_recipe(catalog())) == RECIPES
    loose = tmp_path / "one.gguf"
    shutil.copyfile(pebble_built / "pebble-q8_0.gguf", loose)
    note_loaded(loose)
    note_used(tmp_path / "never was")
    assert recently_used() == [loose, built]
    loose.unlink()
    assert recently_used() == [built]
    # Given and used: once, and with what the manifest says of it.
    assert [entry.label for entry in catalog([built / "onnx-int4"])][:2] == [
        "pebble · q4_k_m", "pebble · onnx-int4"
    ]  # fmt: skip
    assert len(catalog([built, built / "pebble-q8_0.gguf"])) == 4


def test_what_is_no_name_of_a_file_was_not_used(home: Path):
    save_state("recent", {"models": ["x" * 70_000, "\0", "", 5]})
    assert recently_used() == []
    assert catalog() == []


def test_loading_a_file_is_using_it(built: Path):
    from app.models.library import load_engine
    from runtimes.settings import RunnerSettings

    file = read_model(built / "pebble-q8_0.gguf")
    with load_engine(file, RunnerSettings(slots=1, context=64)):
        pass
    assert recently_used() == [built]


def test_filter_words(built: Path):
    found = catalog([built])
    assert sorted(e.recipe for e in found if e.matches(["ONNX", "4-bit"])) == ["onnx-int4"]
    assert len([e for e in found if e.matches(["pebble"])]) == 4
    assert not [e for e in found if e.matches(["pebble", "nothing"])]


def test_whether_it_fits(built: Path):
    entry = by_recipe(catalog([built]))["q8_0"]
    room = fit(entry, free=10**9)
    assert room.fits
    assert room.context == 1024  # the model's own limit
    assert room.needs > entry.bytes  # type: ignore[operator]
    assert not fit(entry, free=room.needs - 1).fits
    assert (state_of(entry, room), state_of(entry, None)) == ("fits", "")
    assert state_of(entry, fit(entry, free=1)) == "too big"
    (built / "pebble-q8_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError):
        fit(entry)


def test_the_first_choice_of_a_comparison(built: Path):
    found = catalog([built])
    loaded = built / "pebble-q4_k_m.gguf"
    assert [entry.recipe for entry in first_choice(found, loaded)] == ["q4_k_m", "onnx-int8"]
    assert first_choice(found[:1], found[0].path) == []


def test_plans_without_a_date_are_left_out():

    save_state("plans", {"a": {"file": "x", "plan": {}}, "b": 3, "c": {"made": 1.0}})
    assert known.made_plans() == []


def test_records_of_plans_can_be_read_by_people(built: Path, home: Path):
    model = read_model(built / "pebble-q4_k_m.gguf")
    task = PlanTask("chat", "balanced", cores=2, free=10**10)
    known.save_plan([model], task, plan_of(model, "onnx-int4"))
    (record,) = json.loads((home / "state" / "plans.json").read_text()).values()
    assert record["path"] == str(model.path)
    assert known.load_plan([model], task) is not None
