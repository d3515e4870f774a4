"""`ingot measure`: what it prints, keeps and ends with."""

import json
from pathlib import Path

import pytest

from app.cli import main as cli
from app.models.catalog import catalog
from app.models.library import note_loaded
from tests.quantize.planted import plant


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.stdin", None)


def test_a_good_file_and_one_that_is_not(
    pebble_f16: Path, pebble_built: Path, tmp_path: Path, capfd
):
    good = tmp_path / "good.gguf"
    good.write_bytes((pebble_built / "pebble-q8_0.gguf").read_bytes())
    bad = plant("rope base", good, tmp_path)
    page = tmp_path / "page.html"
    asked = ["measure", str(good), "--against", str(pebble_f16), "--limit", "600", "--no-speed"]
    assert cli.main([*asked, "--output", str(page)]) == 0
    said = capfd.readouterr().out
    assert "good.gguf: no fault found (the same tokens on" in said
    assert "good.gguf" in page.read_text()
    # What was measured is shown where files are listed, and not measured again.
    note_loaded(good)
    (entry,) = (one for one in catalog() if one.path == good)
    assert entry.fidelity is not None
    assert cli.main([*asked, str(bad), "--json"]) == 1
    first, second = json.loads(capfd.readouterr().out)["files"]
    assert (first["faults"], first["front"]) == ([], True)
    assert second["faults"][0].startswith("settings: llama.rope.freq_base")
    assert not second["front"]
    assert first["fidelity"]["kl_mean"] == entry.fidelity.kl_mean
    # A bound that it is beyond.
    assert cli.main([*asked, "--max-kl", "0.5"]) == 0
    assert cli.main([*asked, "--max-kl", "1e-9"]) == 1
    assert "the bound is 1e-09" in capfd.readouterr().out
    assert cli.main([*asked, "--max-kl", "-1"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("{good}",), 2, "--against ORIGINAL"),
        (("{good}", "--against", "{good}"), 2, "quantized already"),
        (("{good}", "--against", "/nowhere"), 2, "there is no folder"),
        (("/nowhere.gguf", "--against", "{f16}"), 3, "no such file"),
        (("{cut}", "--against", "{f16}"), 3, "cut"),
    ],
)
def test_what_cannot_be_measured_is_said(
    arguments, code: int, said: str, pebble_f16: Path, pebble_built: Path, tmp_path: Path, capfd
):
    good, cut = pebble_built / "pebble-q8_0.gguf", tmp_path / "cut.gguf"
    cut.write_bytes(good.read_bytes()[:100_000])
    given = {"good": good, "f16": pebble_f16, "cut": cut}
    assert cli.main(["measure", *(one.format(**given) for one in arguments)]) == code
    assert said in capfd.readouterr().err
