"""Every command in a folder that has modules of the names that Ingot imports: none of them runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimes.llamacpp.backend import BACKEND
from runtimes.worker.recovery import FORGET
from tests.app.tui.terminal import Terminal
from tests.support import link_source

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[3]
MODULES = ("json", "numpy", "llama_cpp", "onnxruntime", "torch", "logging", "psutil", "builder")
PACKAGES = ("runtimes", "quantize", "app")
QUESTION = "What is the capital of France?"

Command = Callable[..., subprocess.CompletedProcess[str]]


class Folder:
    """Modules that leave a file behind when they are executed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.executed = path.parent / "executed"
        self.executed.mkdir()
        path.mkdir()
        for name in MODULES:
            self._write(path / f"{name}.py", name)
        for name in PACKAGES:
            (path / name).mkdir()
            self._write(path / name / "__init__.py", name)

    def _write(self, path: Path, name: str) -> None:
        mark = self.executed / name
        path.write_text(f"open({str(mark)!r}, 'w').close()\nraise SystemExit('this is {name}')\n")

    def check(self) -> None:
        """Nothing was executed."""
        assert sorted(os.listdir(self.executed)) == []


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "theirs")


@pytest.fixture
def command(folder: Folder, tmp_path: Path) -> Command:
    link_source(tmp_path / "home")

    def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            list(map(str, words)),
            cwd=folder.path,
            env={**os.environ, "INGOT_HOME": str(tmp_path / "home"), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        folder.check()
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_commands_on_built_files(
    command: Command, folder: Folder, gguf_file: Path, onnx_folder: Path
) -> None:
    ingot = BIN / "ingot"
    assert "Paris" in command(ingot, "run", onnx_folder, QUESTION, "--temperature", "0").stdout
    (folder.path / "in.jsonl").write_text(json.dumps({"prompt": QUESTION}) + "\n")
    out = folder.path / "out.jsonl"
    command(ingot, "batch", "in.jsonl", out, "--model", gguf_file, "--logprobs", "--quiet")
    assert json.loads(out.read_text())["logprobs"]


def test_a_quantized_model(command: Command, folder: Folder, float_gguf: Path) -> None:
    """Children of each kind are started in the same way; those that import torch take seconds."""
    words = ("--recipe", "q8_0", "--no-measure")
    command(BIN / "quantize", float_gguf, "--out", "built", *words)
    manifest = json.loads((folder.path / "built" / "manifest.json").read_text())
    assert [entry["recipe"] for entry in manifest["files"]] == ["q8_0"]


def test_an_answer_in_the_terminal(folder: Folder, tmp_path: Path, gguf_file: Path) -> None:
    terminal = Terminal(
        "chat", gguf_file, env={"INGOT_HOME": str(tmp_path / "home")}, folder=folder.path
    )
    try:
        terminal.wait("q8_0")
        terminal.press(f"{QUESTION}\r")
        terminal.wait("Paris")
    finally:
        terminal.close()
    folder.check()


@pytest.mark.parametrize("advice", [FORGET, BACKEND.install, BACKEND.reinstall])
def test_what_messages_recommend(command: Command, folder: Folder, advice: str) -> None:
    """The folder's own `runtimes` is there; --help keeps the command from its work."""
    python, *words = advice.split()
    assert python == "python"
    done = command(sys.executable, *words, "--help", PYTHONPATH=str(ROOT))
    assert f"usage: python -P -m {words[words.index('-m') + 1]}" in done.stdout
    folder.check()


@pytest.mark.parametrize(
    "module", ["app", "quantize", "runtimes.worker", "runtimes.llamacpp.build"]
)
def test_a_module_of_ingot_by_its_name(command: Command, folder: Folder, module: str) -> None:
    """`python -m app` would be the folder's own `app`, which Python runs before us."""
    for name in PACKAGES:
        (folder.path / name).rename(folder.path / f"no-{name}")
    command(sys.executable, "-m", module, "--help", PYTHONPATH=str(ROOT))
