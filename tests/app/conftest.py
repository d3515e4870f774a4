"""The `ingot` command in a process of its own, as users run it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import main
from tests import parallel
from tests.app import endless

ROOT = Path(__file__).resolve().parents[2]


class Ingot:
    """Starts `ingot`; what a test leaves running is killed when the test ends."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        *arguments: str | Path,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        env: dict[str, str] | None = None,
        preexec: Callable[[], None] | None = None,
    ) -> subprocess.Popen[bytes]:
        """A running command."""
        process = subprocess.Popen(
            [sys.executable, "-m", "app", *map(str, arguments)],
            cwd=ROOT,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            preexec_fn=preexec,
        )
        self.started.append(process)
        return process

    def __call__(
        self, *arguments: str | Path, stdin: bytes | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """A finished command, its output as text; a traceback in it fails the test."""
        feed = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        process = self.start(*arguments, stdin=feed, **options)
        out, err = process.communicate(stdin, timeout=600)
        done = subprocess.CompletedProcess(
            arguments, process.returncode, out.decode(), err.decode()
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done


@pytest.fixture
def ingot() -> Any:
    """See ``Ingot``."""
    command = Ingot()
    yield command
    for process in command.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`ingot` in the tests' own process, which costs half of one of its own; its engine still has
    one. For what a process alone shows, as signals, pipes and limits do, there is ``ingot``."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = main([*map(str, arguments)])
        out, err = capfd.readouterr()
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run


@pytest.fixture(scope="session")
def gguf_file(pebble_built: Path) -> Path:
    """Pebble for llama.cpp."""
    from quantize.resolve import resolve

    return resolve(pebble_built, recipe="q8_0")


@pytest.fixture(scope="session")
def onnx_folder(pebble_built: Path) -> Path:
    """Pebble for ONNX Runtime."""
    from quantize.resolve import resolve

    return resolve(pebble_built, recipe="onnx-int8")


@pytest.fixture(scope="session")
def endless_built(pebble_built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pebble's four files with a context for answers that take minutes."""
    return parallel.once(
        tmp_path_factory, "pebble-endless", partial(endless.lengthen, pebble_built)
    )


@pytest.fixture(scope="session")
def endless_gguf(endless_built: Path) -> Path:
    """The same, for llama.cpp."""
    from quantize.resolve import resolve

    return resolve(endless_built, recipe="q8_0")


_TO_FLOATS = """
import ctypes, sys
from llama_cpp import llama_cpp as lib
lib.llama_backend_init()
params = lib.llama_model_quantize_default_params()
params.ftype, params.allow_requantize = 1, True  # LLAMA_FTYPE_MOSTLY_F16
source, out = (name.encode() for name in sys.argv[1:])
sys.exit(lib.llama_model_quantize(source, out, ctypes.byref(params)))
"""


@pytest.fixture(scope="session")
def float_gguf(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pebble as a half-precision GGUF file: builds from it need no torch and take seconds."""

    def make(out: Path) -> None:
        out.mkdir()
        command = [sys.executable, "-c", _TO_FLOATS, gguf_file, out / "pebble-f16.gguf"]
        subprocess.run(command, check=True, capture_output=True)

    return parallel.once(tmp_path_factory, "pebble-float", make) / "pebble-f16.gguf"
