"""`ingot measure`: what it prints, keeps and ends with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from app.models.catalog import catalog
from app.models.library import note_loaded
from tests.quantize.planted import plant


def test_a_good_file_and_one_that_is_not(
    command: Any, home: Path, float_gguf: Path, gguf_file: Path, tmp_path: Path
) -> None:
    good = Path(shutil.copy(gguf_file, tmp_path / "good.gguf"))
    bad = plant("rope base", good, tmp_path)
    page = tmp_path / "page.html"
    asked = ("measure", good, "--against", float_gguf, "--limit", "300", "--no-speed")
    done = command(*asked, "--output", page, "--max-kl", "0.5")
    assert done.returncode == 0, done.stderr
    assert "good.gguf: no fault found (the same tokens on" in done.stdout
    assert "good.gguf" in page.read_text()
    # What was measured is shown where files are listed, and not measured again.
    note_loaded(good)
    (entry,) = (one for one in catalog() if one.path == good)
    assert entry.fidelity is not None
    done = command(*asked, bad, "--json")
    assert done.returncode == 1
    first, second = json.loads(done.stdout)["files"]
    assert (first["faults"], first["front"]) == ([], True)
    assert second["faults"][0].startswith("settings: llama.rope.freq_base")
    assert not second["front"]
    assert first["fidelity"]["kl_mean"] == entry.fidelity.kl_mean
    # A bound that it is beyond.
    done = command(*asked, "--max-kl", "1e-9")
    assert done.returncode == 1
    assert "the bound is 1e-09" in done.stdout
    assert command(*asked, "--max-kl", "-1").returncode == 2
