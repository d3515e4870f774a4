"""The devices that tests run on: what there is, and the processor as if it were one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import runtimes.onnx.device
from runtimes.models.registry import backend
from tests.runtimes.devices.opened import PROCESSOR, PROVIDERS
from tests.runtimes.machine import tiny_onnx


@pytest.fixture(scope="module", params=["first", "processor"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "processor":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtimes.onnx.device, "_PROVIDERS", PROVIDERS)
            yield PROCESSOR.name
        return
    found = backend("onnx").devices()
    if not found:
        pytest.skip("ONNX Runtime has no device here but the processor")
    yield found[0].name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_onnx.write(tmp_path_factory.mktemp("tiny"), exact=True)
