"""Files for targets: the bound is kept, or nothing is published."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import onnx_ir as ir
import pytest

from quantize.allocate.solve import read_table
from quantize.allocate.types import fused
from quantize.build import target as building
from quantize.build import target_files
from quantize.build.pipeline import build
from quantize.build.target import find_listed
from quantize.build.workspace import WORK
from quantize.errors import MissedTargetError, SourceError, UsageError
from quantize.manifest import Manifest, load_manifest, write_manifest
from quantize.onnx.nbits import tensor_of
from quantize.options import MeasureOptions, Options, SourceOptions
from quantize.progress import Reporter
from quantize.quality.text import BUNDLED
from quantize.recipes import find_recipe, gguf_bits, parse_variant
from runtimes.models.gguf import read_header
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.paths import cache_dir
from runtimes.settings import RunnerSettings
from tests.quantize.allocate import sweeping
from tests.quantize.conftest import run_quantize
from tests.quantize.hub.hubs import Notes
from tests.quantize.shapes import SHAPES, make_random_model
from tests.support import own_home

pytestmark = pytest.mark.usefixtures("hurried")

TARGETS = ("kl0.03", "330kb", "5.5bpw", "fits-8mb-256")
IN_ONNX = ("onnx-kl0.05", "onnx-440kb")
# Rows of 128 and 192: no types of blocks of 256, which take long.
SMALL = {"hidden_size": 128, "intermediate_size": 192}


@dataclass(frozen=True)
class Made:
    options: Options
    out: Path
    manifest: Manifest
    told: Notes


@pytest.fixture(scope="module", autouse=True)
def _short_texts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "_TUNE", 1024)
        patch.setattr("quantize.build.measuring._DEEP", 512)
        yield


@pytest.fixture(scope="module")
def made(hurried: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """All kinds of targets in one run."""
    folder = tmp_path_factory.mktemp("targets")
    model = make_random_model(folder / "tiny", SHAPES["llama"], **SMALL)
    options = Options(
        SourceOptions(str(model)),
        tuple(find_recipe(name) for name in (*TARGETS, *IN_ONNX, "q4_0")),
        out=folder / "out",
        measure=MeasureOptions(limit=1024),
    )
    with own_home(folder / "home"):
        told = Notes()
        out, manifest = build(options, told)
        yield Made(options, out, manifest, told)


def test_every_bound_is_kept(made: Made):
    kl, size, bits, fits, fixed = map(made.manifest.entry, (*TARGETS, "q4_0"))
    assert kl.path == "tiny-kl0.03.gguf"
    assert kl.fidelity.kl_mean + kl.fidelity.kl_error <= 0.03
    assert (made.out / size.path).stat().st_size == size.bytes <= 330_000
    assert size.bytes > 0.98 * 330_000  # what there is is used
    assert gguf_bits(read_header(made.out / bits.path)) <= 5.5
    file = read_model(made.out / fits.path)
    memory = estimate(file, RunnerSettings(slots=1, context=256, kv_type=file.kv_type))
    assert 0.97 * 8e6 < memory.total <= 8e6
    assert fits.allocation is not None
    assert fits.allocation.cache == file.kv_type  # what it was made for is what it runs with
    if file.kv_type != "f16":
        assert fits.allocation.cache_tokens == 256
        assert 0 < (fits.allocation.cache_kl or 0) < 1
        assert fits.whole.kl_mean == fits.fidelity.kl_mean + fits.allocation.cache_loss
    # Smaller than the recipe and nearer to the model: that is what it is for.
    assert size.bytes < fixed.bytes
    assert size.fidelity.kl_mean < fixed.fidelity.kl_mean
    # One pass makes the tables of both formats.
    assert len([text for text in made.told.stages if "how much each tensor matters" in text]) == 1


def test_manifest_and_file_say_every_type(made: Made):
    for name in TARGETS:
        entry = made.manifest.entry(name)
        header = read_header(made.out / entry.path)
        types = {t.name: t.type_name.lower() for t in header.tensors if len(t.shape) > 1}
        assert entry.allocation.types == types
        assert header.metadata["ingot.target"] == name
        told = " ".join(
            str(text)
            for key, text in header.metadata.items()
            if key.startswith("ingot.allocation.")
        ).split()
        assert len(told) == len(types)
    for mixes in (made.manifest.model.mixes, made.manifest.model.onnx_mixes):
        sizes, losses = zip(*mixes, strict=True)
        assert sizes == tuple(sorted(sizes))
        assert losses == tuple(sorted(losses, reverse=True))
    report = (made.out / "report.html").read_text()
    assert "predicted to lose" in report
    assert report.count('class="types"') == len(TARGETS) + len(IN_ONNX)


def test_onnx_folders_keep_targets_too(made: Made):
    kl, size = map(made.manifest.entry, IN_ONNX)
    assert kl.path == "onnx-kl0.05"
    assert kl.fidelity.kl_mean + kl.fidelity.kl_error <= 0.05
    there = [file.stat().st_size for file in (made.out / size.path).iterdir()]
    assert 0.98 * 440_000 < sum(there) == size.bytes <= 440_000
    for entry in (kl, size):
        assert entry.allocation.predicted == pytest.approx(entry.fidelity.kl_mean, rel=0.2)
        types = entry.allocation.types
        graph = ir.load(made.out / entry.path / "model.onnx")
        products = [node for node in graph.graph if node.op_type == "MatMulNBits"]
        assert len(products) == len(types) - 1  # and the table
        for node in products:
            name, _, bits = node.name.rpartition("_Q")
            variant = parse_variant(types[tensor_of(name, types)])
            assert variant.bits == int(bits)
            assert variant.block == node.attributes["block_size"].value
            assert variant.symmetric == (len(node.inputs) == 3)
        told = [text for key, text in graph.metadata_props.items() if "ingot.allocation" in key]
        assert len(" ".join(told).split()) == len(types)


def test_further_targets_take_the_table_and_begin_with_how_far_those_before_were_off(
    made: Made, tmp_path: Path
):
    out = Path(shutil.copytree(made.out, tmp_path / "out"))
    known = load_manifest(out)
    entry = known.entry("kl0.03")
    lost = max(entry.fidelity.kl_mean + entry.fidelity.kl_error, entry.allocation.tuned or 0.0)
    # As if it had lost twice what was predicted.
    allocation = replace(entry.allocation, predicted=lost / 2)
    write_manifest(out, known.with_entry(replace(entry, allocation=allocation)))
    told, names = Notes(), ("kl0.03", "kl0.04")
    build(replace(made.options, out=out, recipes=tuple(map(find_recipe, names))), told)
    assert "the table of sensitivities is the one measured before" in told.notes
    assert "tiny-kl0.03.gguf is already built (--fresh builds it again)" in told.notes
    assert not [text for text in told.stages if "how much each tensor matters" in text]
    tries = [note for note in told.notes if note.startswith("kl0.04, a bound of")]
    predicted = float(tries[0].split("predicted ")[1].split(",")[0])
    assert 0.4 * 0.04 < predicted <= 0.5 * 0.04
    # What the user asks for a tensor stays.
    options = replace(made.options, out=out, overrides={"attn_q": "q8_0"})
    options = replace(options, recipes=(find_recipe("350kb"),), measure=MeasureOptions(False))
    _, manifest = build(options, Notes())
    entry = manifest.entry("350kb")
    assert entry.bytes <= 350_000
    assert {k for n, k in entry.allocation.types.items() if "attn_q" in n} == {"q8_0"}


def test_targets_that_nothing_keeps_are_refused(made: Made):
    whys = {
        "kl1e-9": "tiny is predicted to lose",
        "100kb": "the smallest file of tiny",
        "1.1bpw": "tiny takes at least .* bits a weight",
        "fits-1mb-256": "tiny takes at least .* MB with 256 tokens of context",
    }
    before = sorted(made.out.glob("*.gguf"))
    with pytest.raises(MissedTargetError) as told:
        build(replace(made.options, recipes=tuple(map(find_recipe, whys))), Reporter())
    for name, why in whys.items():
        assert re.search(f"{name} cannot be kept: .*{why}", str(told.value))
        assert load_manifest(made.out).entry(name) is None
    assert sorted(made.out.glob("*.gguf")) == before


def test_a_bound_that_is_missed_keeps_the_nearest_file_aside(
    made: Made, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(building, "_AIMS", (3.0,))
    with pytest.raises(
        MissedTargetError, match=r"kl0\.04 is not kept: the nearest of 1 tr"
    ) as told:
        build(replace(made.options, recipes=(find_recipe("kl0.04"),)), Reporter())
    assert told.value.exit_code == 1
    aside = made.out / "tiny-kl0.04.missed.gguf"
    assert str(aside) in str(told.value)
    assert read_header(aside).metadata["ingot.target"] == "kl0.04"
    assert load_manifest(made.out).entry("kl0.04") is None
    # One of memory may be bound as well; what is beyond it is not published.
    kept = ("--max-kl", "1e-6", "--limit", "1024", "--out", made.out)
    line = (made.options.source.model, "--fits", "8MB", "--context", "256", *kept)
    done = run_quantize(*line, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "fits-8mb-256-kl1e-6 is too far from the float model: mean KL diverg" in done.stderr
    assert load_manifest(made.out).entry("fits-8mb-256-kl1e-6") is None
    done = run_quantize(*line, "--max-kl", "0.1", check=False)
    assert (done.returncode, "--fits takes one --max-kl" in done.stderr) == (2, True)


def test_texts_that_share_a_passage_are_refused_before_anything(made: Made, tmp_path: Path):
    again = tmp_path / "text.txt"
    again.write_text("Another beginning. " * 300 + BUNDLED.read_text())
    measure = replace(made.options.measure, text=BUNDLED)
    options = replace(made.options, out=tmp_path / "out", imatrix=again, measure=measure)
    with pytest.raises(UsageError, match="share a passage"):
        build(options, Reporter())
    assert not (tmp_path / "out").exists()


def test_experts_in_onnx_are_refused(tmp_path: Path):
    model = make_random_model(tmp_path / "experts", SHAPES["mixtral"], num_hidden_layers=1)
    recipes = (find_recipe("kl0.1"), find_recipe("onnx-kl0.1"))
    with pytest.raises(UsageError, match=r"^onnx-kl0\.1: how experts are stored .* --to gguf"):
        build(Options(SourceOptions(str(model)), recipes, out=tmp_path / "out"), Reporter())
    assert not (tmp_path / "out").exists()


def test_what_a_target_needs_is_told_before_anything(made: Made, pebble_f16: Path, tmp_path: Path):
    options, unmeasured = made.options, MeasureOptions(enabled=False)
    source, bound = SourceOptions(str(pebble_f16)), (find_recipe("fits-8mb-256-kl0.1"),)
    for wrong, why in (
        (
            Options(source, options.recipes, out=tmp_path / "o"),
            r"kl0\.03, .* the model's gradients",
        ),
        (replace(options, measure=unmeasured), r"kl0\.03 is a bound that is measured"),
        (
            replace(options, recipes=bound, measure=unmeasured),
            r"kl0\.1 is a bound that is measured",
        ),
        (replace(options, target="cuda"), r"types of onnx-kl0\.05 are chosen on the processor"),
    ):
        with pytest.raises(UsageError, match=why):
            build(wrong, Reporter())


def test_a_line_builds_every_file_exactly_again(made: Made, tmp_path: Path):
    """In another home, so that nothing is known: the importance matrix and, for ONNX, the table are
    made again too. Types are not searched: no file is tried."""
    again = ("kl0.03", "onnx-440kb")
    report = (made.out / "report.html").read_text()
    for name in again:
        entry = made.manifest.entry(name)
        assert entry.allocation.rebuild == f"quantize tiny --allocation 'manifest.json#{name}'"
        assert escape(entry.allocation.rebuild) in report
    header = read_header(made.out / "tiny-kl0.03.gguf")
    assert header.metadata["ingot.rebuild.0"] == "quantize tiny --allocation 'manifest.json#kl0.03'"
    listed = {name: find_listed(f"{made.out / 'manifest.json'}#{name}") for name in again}
    options = Options(
        made.options.source,
        tuple(find_recipe(name) for name in again),
        out=tmp_path / "out",
        measure=MeasureOptions(enabled=False),
        allocations=listed,
    )
    told = Notes()
    with own_home(tmp_path / "home"):
        _, manifest = build(options, told)
    assert not [text for text in told.stages if "try" in text]
    for name in again:
        entry = manifest.entry(name)
        assert entry.sha256 == listed[name].sha256
        assert entry.allocation == listed[name].allocation
        assert f"{name} is byte for byte the file that is listed" in told.notes


def test_a_mix_may_have_products_of_integers_whose_loss_is_predicted(made: Made, tmp_path: Path):
    listed = find_listed(f"{made.out}#onnx-440kb")
    names = listed.allocation.types
    types = {name: "w8a8" if name.startswith("blk.") else "8s32" for name in names}
    options = Options(
        made.options.source,
        (find_recipe("onnx-440kb"),),
        out=tmp_path / "out",
        measure=MeasureOptions(limit=1024),
        allocations={
            "onnx-440kb": replace(listed, allocation=replace(listed.allocation, types=types))
        },
    )
    out, manifest = build(options, Reporter())
    (entry,) = manifest.files
    graph = ir.load(out / entry.path / "model.onnx").graph
    kinds = [node.op_type for node in graph]
    assert kinds.count("MatMulInteger") == len([name for name in names if name.startswith("blk.")])
    assert kinds.count("MatMulNBits") == 1  # the output layer
    tables = list((cache_dir() / "sensitivities").glob("*.json"))
    (path,) = [path for path in tables if "w8a8" in path.read_text()]
    table = read_table(path)
    predicted = replace(table, units=fused(table.units)).total(types).kl
    assert entry.fidelity.kl_mean == pytest.approx(predicted, rel=0.3)


def test_what_cannot_be_built_again_is_told(made: Made, tmp_path: Path):
    for text, why in (
        (f"{made.out}#kl0.5", r"no allocation of kl0\.5: it has kl0\.03, 330kb"),
        (f"{made.out}#q4_0", "no allocation of q4_0"),
        (f"{made.out}/manifest.json", "takes the manifest that lists a file, and its recipe"),
        (f"{made.out}/tiny-kl0.03.gguf#kl0.03", "takes the manifest"),
    ):
        with pytest.raises(UsageError, match=why):
            find_listed(text)
    other = make_random_model(tmp_path / "other", SHAPES["llama"], **SMALL, initializer_range=0.03)
    options = Options(
        SourceOptions(str(other)),
        (find_recipe("kl0.03"),),
        out=tmp_path / "out",
        measure=MeasureOptions(enabled=False),
        allocations={"kl0.03": find_listed(f"{made.out}#kl0.03")},
    )
    with pytest.raises(SourceError, match=r"kl0\.03 was built from other files of tiny"):
        build(options, Reporter())
    assert not (tmp_path / "out").exists()


def test_a_sweep_that_was_killed_is_taken_up_and_gives_the_same_file(
    made: Made, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By its last layer; in another home, where nothing is known."""
    out, folder = tmp_path / "out", home / "cache" / "sensitivities"
    command = (made.options.source.model, "--max-kl", "0.03", "--limit", "1024", "--out", out)
    with monkeypatch.context() as patch:
        patch.setattr(target_files, "gguf_unit", sweeping.killed_unit)
        done = run_quantize(*command, check=False)
    assert (done.returncode, "measuring sensitivities was killed" in done.stderr) == (4, True)
    assert [path.name for path in out.iterdir()] == [WORK]  # nothing is published
    (state,) = folder.glob("*.partial/done.json")
    units = json.loads(state.read_text())["units"][0]
    assert 0 < len(units) < len(made.manifest.entry("kl0.03").allocation.types)
    run_quantize(*command)
    assert not list(folder.glob("*.partial"))
    (entry,) = load_manifest(out).files
    undisturbed = made.manifest.entry("kl0.03")
    assert entry.sha256 == undisturbed.sha256
    assert entry.allocation == undisturbed.allocation
