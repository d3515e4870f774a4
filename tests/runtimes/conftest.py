"""Pebble's files as the tests of the runtimes want them, and a llama.cpp that is made to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quantize.resolve import resolve
from runtimes.engine.engine import Engine
from runtimes.settings import RunnerSettings
from tests.runtimes.worker.faults import build_fault_library


@pytest.fixture(scope="session")
def gguf(pebble_built: Path) -> Path:
    return resolve(pebble_built, recipe="q8_0")


@pytest.fixture(scope="module", params=["q8_0", "onnx-int4"])
def pebble_file(request: pytest.FixtureRequest, pebble_built: Path) -> Path:
    """One file of each runtime: what is tested with both is above them."""
    return resolve(pebble_built, recipe=request.param)


@pytest.fixture(scope="module")
def engine(pebble_file: Path) -> Iterator[Engine]:
    with Engine.load(pebble_file, RunnerSettings(slots=8, context=512)) as engine:
        yield engine


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fault_library(tmp_path_factory.mktemp("fault"))


@pytest.fixture
def fault(fault_library: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes llama.cpp fail in the processes that are started from now on."""

    def choose(kind: str) -> None:
        monkeypatch.setenv("LD_PRELOAD", str(fault_library))
        monkeypatch.setenv("INGOT_TEST_FAULT", kind)

    return choose
