"""A whole run in this process: from a GGUF file of floats, which needs no other library."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from quantize.build.pipeline import build
from quantize.build.workspace import WORK
from quantize.errors import QualityError, UsageError
from quantize.manifest import Manifest, load_manifest, write_manifest
from quantize.options import MeasureOptions, Options, SourceOptions
from quantize.progress import Reporter
from quantize.recipes import RECIPES, Limits, gguf_bits
from quantize.report.facts import comparable_parts
from quantize.report.table import build_table
from runtimes.models.gguf import read_header
from tests.quantize.conftest import kill_during, run_quantize
from tests.quantize.hub.hubs import Notes

pytestmark = pytest.mark.usefixtures("hurried")


def test_a_file_beyond_its_limit_is_not_published_but_kept_for_no_gates(
    pebble_f16: Path, tmp_path: Path
):
    out = tmp_path / "out"
    strict = replace(RECIPES["q4_0"], limits=Limits(kl_mean=0.0, same_top=0.0))
    options = Options(
        SourceOptions(str(pebble_f16)),
        (strict, RECIPES["q8_0"]),
        out=out,
        measure=MeasureOptions(limit=64),
    )
    with pytest.raises(QualityError, match="q4_0 is too far from the float model"):
        build(options, Reporter())
    assert [entry.recipe for entry in load_manifest(out).files] == ["q8_0"]
    assert list(out.glob("*q4_0*")) == []
    assert (out / WORK).is_dir()
    told = Notes()
    _, manifest = build(replace(options, measure=MeasureOptions(limit=64, gates=False)), told)
    assert {entry.recipe for entry in manifest.files} == {"q8_0", "q4_0"}
    assert "quantizing to q4_0: an earlier run has done this" in told.notes
    assert not [text for text in told.stages if "quantizing" in text or "comparing q4_0" in text]
    for entry in manifest.files:
        assert entry.fidelity is not None
        assert entry.token_parity is None  # there is no other tokenizer to compare with
        assert entry.route == "llama.cpp"
    assert manifest.model.perplexity is not None
    assert not (out / WORK).exists()
    # The limits count for what is there already, too.
    with pytest.raises(QualityError, match="q4_0"):
        build(options, Reporter())


def told_by(table: Table) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as said:
        console.print(table)
    return said.get()


def test_a_quantized_file_is_rounded_again_and_says_so(pebble_built: Path, tmp_path: Path):
    options = Options(
        SourceOptions(str(pebble_built / "pebble-q8_0.gguf"), allow_requantize=True),
        (RECIPES["q4_0"],),
        out=tmp_path / "out",
        measure=MeasureOptions(limit=64),
    )
    told = Notes()
    out, manifest = build(options, told)
    (entry,) = manifest.files
    assert entry.path == "pebble-q8_0-q4_0.gguf"
    types = {t.type_name for t in read_header(out / entry.path).tensors if len(t.shape) > 1}
    assert "Q4_0" in types
    assert entry.fidelity.kl_mean > 0
    (note,) = [note for note in entry.notes if "quantized before" in note]
    assert "43 Q8_0" in note
    assert note in told.notes
    assert "43 Q8_0" in manifest.model.quantized
    assert "| the original | quantized |" in (out / "README.md").read_text()
    assert "float" not in told_by(build_table(manifest, ("q4_0",)))


def test_a_gguf_file_gives_no_onnx_and_takes_no_adapter(pebble_f16: Path, tmp_path: Path):
    source = SourceOptions(str(pebble_f16))
    for wrong, says in (
        (Options(source, (RECIPES["onnx-int8"],), out=tmp_path), "onnx-int8 cannot be made"),
        (Options(replace(source, lora="l"), (RECIPES["q8_0"],), out=tmp_path), "adapter"),
    ):
        with pytest.raises(UsageError, match=says):
            build(wrong, Reporter())
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def measured(hurried: None, pebble_f16: Path, tmp_path_factory: pytest.TempPathFactory) -> Options:
    """What two files were built with, and are measured over 64 tokens."""
    options = Options(
        SourceOptions(str(pebble_f16)),
        (RECIPES["q8_0"], RECIPES["q4_0"]),
        out=tmp_path_factory.mktemp("measured") / "out",
        measure=MeasureOptions(limit=64),
    )
    build(options, Reporter())
    return options


def test_a_killed_run_is_taken_up_and_gives_the_same_file(measured: Options, tmp_path: Path):
    out = tmp_path / "out"
    command = (measured.source.model, "--recipe", "q4_0", "--limit", "64", "--out", out)
    code, _ = kill_during("comparing q4_0 with the float model", signal.SIGKILL, *command)
    assert code == -signal.SIGKILL
    assert [path.name for path in out.iterdir()] == [WORK]  # nothing is published
    done = run_quantize(*command)
    assert "quantizing to q4_0: an earlier run has done this" in done.stderr
    assert measured.out is not None
    (entry,) = load_manifest(out).files
    assert entry.sha256 == load_manifest(measured.out).entry("q4_0").sha256


def copied(measured: Options, tmp_path: Path) -> tuple[Path, Manifest, Options]:
    """A folder of its own with them."""
    assert measured.out is not None
    out = Path(shutil.copytree(measured.out, tmp_path / "out"))
    return out, load_manifest(out), replace(measured, out=out)


def test_a_second_run_with_another_limit_measures_everything_again(
    measured: Options, tmp_path: Path
):
    out, before, options = copied(measured, tmp_path)
    older = tuple(replace(entry, bits_per_weight=None) for entry in before.files)
    write_manifest(out, replace(before, files=older))
    told = Notes()
    again = replace(options, recipes=(RECIPES["q4_1"],), measure=MeasureOptions(limit=100))
    _, manifest = build(again, told)
    assert [entry.recipe for entry in manifest.files] == ["q8_0", "q4_0", "q4_1"]
    assert not [text for text in told.stages if "quantizing to q8_0" in text]
    figures = [e.fidelity.perplexity for e in manifest.files if e.fidelity]
    tokens = {(p.tokens, p.text_sha256) for p in (manifest.model.perplexity, *figures)}
    assert tokens == {(100, manifest.model.perplexity.text_sha256)}
    assert len(comparable_parts(manifest)) == 1
    for entry in manifest.files:
        assert entry.bits_per_weight == gguf_bits(read_header(out / entry.path))
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "over the same 100 token ids" in card
    assert "64 token ids" not in card


def test_a_file_that_cannot_be_measured_again_is_shown_apart(measured: Options, tmp_path: Path):
    out, before, options = copied(measured, tmp_path)
    old = before.entry("q8_0")
    with (out / old.path).open("r+b") as file:
        file.truncate(old.bytes - 1)
    again = replace(options, recipes=(RECIPES["q4_0"],), measure=MeasureOptions(limit=100))
    told = Notes()
    _, manifest = build(again, told)
    assert any(note.startswith("q8_0 keeps") for note in told.notes)
    main, apart = comparable_parts(manifest)
    assert [entry.recipe for entry in main.files] == ["q4_0"]
    assert [entry.recipe for entry in apart.files] == ["q8_0"]
    assert main.model.perplexity.tokens == 100
    assert apart.model.perplexity is None
