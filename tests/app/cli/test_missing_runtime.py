"""Commands in an environment that really lacks one of the runtimes."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

QUESTION = "What is the capital of France?"
ONE = ["--threads", "1"]


@pytest.fixture(params=["llamacpp", "onnx"])
def missing(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the runtime that `ingot` finds no library of."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    lacks = "llama_cpp" if request.param == "llamacpp" else "onnxruntime"
    (there,) = folder.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(lacks):
            (there / path.name).symlink_to(path)
    monkeypatch.setattr(sys, "executable", str(folder / "bin" / "python"))
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "home"))
    return request.param


def test_a_file_that_can_be_loaded_is_taken_and_another_says_how_its_runtime_is_installed(
    ingot: Any, pebble_built: Path, tmp_path: Path, missing: str
) -> None:
    rows, other = tmp_path / "rows.txt", "q8_0" if missing == "llamacpp" else "onnx-int8"
    rows.write_text(QUESTION + "\n")
    run = ("run", pebble_built, QUESTION, *ONE)
    batch = ("batch", rows, "--model", pebble_built, *ONE)
    done = ingot(*run, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runtime"] == ("onnx" if missing == "llamacpp" else "llamacpp")
    done = ingot(*batch, tmp_path / "out.jsonl", "--recipe", other)
    assert done.returncode == 3
    assert "is not installed; install it with" in done.stderr
