"""The `ingot` command in a process of its own, as users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import parallel

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
        out, err = process.communicate(stdin, timeout=180)
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
def float_gguf(pebble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pebble as a half-precision GGUF file, built as a screen would: runs that start from it take
    seconds."""
    from app.melts.child import MeltProcess
    from app.melts.settings import Settings

    def make(out: Path) -> None:
        process = MeltProcess(Settings(str(pebble), ("f16",), out=str(out), measure=False))
        assert process.wait(300)
        assert not process.poll()
        assert process.melt.state == "done", (process.melt, process.last_words)

    return parallel.once(tmp_path_factory, "pebble-float", make) / "pebble-f16.gguf"
