"""Engines of a job on several GPUs: which of them each gets, and whether they fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.batch.schedule import engines
from app.batch.schedule.engines import placements, require_room
from app.models.planning import LoadChoice
from quantize.resolve import resolve
from runtimes.backend import Device
from runtimes.errors import OutOfMemoryError
from runtimes.machine.cpu import Core
from runtimes.machine.gpus import Gpu
from runtimes.machine.selftest import Health, ensure
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings, SchedulerSettings
from tests.app.batch.conftest import Batch
from tests.support import questions, write_rows

SETTINGS = RunnerSettings(slots=4, context=1024)


@pytest.fixture
def choice(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> LoadChoice:
    """On two cores, without NVIDIA's driver."""
    monkeypatch.setattr(engines, "cores", lambda: (Core((0,)), Core((1,))))
    monkeypatch.setattr(engines, "find_gpus", lambda: ())
    return LoadChoice(read_model(gguf_file), SETTINGS, SchedulerSettings(), planned=False)


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call it with the devices that the self-test is to have listed."""

    def listed(*devices: Device) -> None:
        found: Health = replace(ensure("llamacpp"), devices=devices)
        monkeypatch.setattr(engines, "ensure", lambda *_, **named: found)

    return listed


def on(choice: LoadChoice, count: Any, device: str = "auto") -> list[tuple[str, dict[str, str]]]:
    """The device of each engine, and what its process sees besides."""
    choice = replace(choice, settings=replace(choice.settings, device=device))
    return [
        (seat.gpu.device if seat.gpu else "", dict(seat.place.environment))
        for seat in placements(count, choice)
    ]


def test_seats_share_nvidias_gpus(
    choice: LoadChoice, has: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need = estimate(choice.file, SETTINGS).total
    there = tuple(Gpu(i, "a GPU", 4 * need, (i + 1) * need, "9.0", "1") for i in range(3))
    has(*(Device(f"CUDA{i}", "a GPU") for i in range(3)))
    monkeypatch.setattr(engines, "find_gpus", lambda: there)
    monkeypatch.delenv(engines.VISIBLE, raising=False)

    def named(count: Any) -> list[str]:
        return [environment[engines.VISIBLE] for _, environment in on(choice, count)]

    assert named("auto") == ["0", "1", "2"]
    assert named(4) == ["0", "1", "2", "0"]
    monkeypatch.setenv(engines.VISIBLE, "2,1")
    assert named("auto") == ["2", "1"]
    # Three fit on GPU 2, two on GPU 1; they are dealt out in turn.
    require_room(choice, SETTINGS, placements(5, choice))
    with pytest.raises(OutOfMemoryError, match=r"GPU memory are free\. What fits: --engines 5"):
        require_room(choice, SETTINGS, placements(6, choice))
    without = replace(choice, settings=RunnerSettings(gpu_layers=0))
    assert [s.place.environment for s in placements(2, without)] == [{}, {}]


def test_seats_share_devices_of_other_makers(choice: LoadChoice, has: Callable[..., None]) -> None:
    need = estimate(choice.file, SETTINGS).total
    within = Device("Vulkan2", "within the processor", auto=False)
    has(Device("Vulkan0", "one", need, need), Device("Vulkan1", "two", need, need), within)
    assert on(choice, "auto") == [("Vulkan0", {}), ("Vulkan1", {})]
    assert on(choice, 3) == [("Vulkan0", {}), ("Vulkan1", {}), ("Vulkan0", {})]
    assert on(choice, 1) == [("", {})]
    # Those that are named are dealt out, none else.
    assert on(choice, "auto", "Vulkan2, Vulkan1") == [("Vulkan1", {}), ("Vulkan2", {})]
    assert on(choice, 2, "Vulkan1") == [("Vulkan1", {})] * 2
    assert on(choice, 2, "cpu") == [("", {})] * 2
    require_room(choice, SETTINGS, placements(2, choice))
    with pytest.raises(OutOfMemoryError, match="What fits: --engines 2"):
        require_room(choice, SETTINGS, placements(3, choice))
    # How much is free, not every device tells.
    has(Device("SYCL0", "one"), Device("SYCL1", "two"))
    require_room(choice, SETTINGS, placements(5, choice))


def test_what_has_no_devices_or_no_layers(
    choice: LoadChoice,
    has: Callable[..., None],
    pebble_built: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has()
    monkeypatch.setattr(engines, "find_gpus", lambda: (Gpu(0, "a GPU", 1, 1, "9.0", "1"),) * 3)
    assert on(choice, 2) == [("", {}), ("", {})]
    # A plan says 0 layers of an ONNX file, wherever it runs.
    file = read_model(resolve(pebble_built, recipe="onnx-int8"))
    choice = replace(choice, file=file, settings=replace(SETTINGS, gpu_layers=0))
    has(Device("CUDA", "one"), Device("CUDA:1", "two"))
    assert on(choice, "auto", "CUDA,CUDA:1") == [("CUDA", {}), ("CUDA:1", {})]
    assert on(choice, 2, "cpu") == [("", {})] * 2


@pytest.mark.timeout(600)  # a device of software compiles its kernels first
def test_a_job_on_two_devices(
    batch: Batch, ingot: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where llama.cpp was built for Vulkan, one device that is listed twice will do."""
    if not ensure("llamacpp").devices:
        pytest.skip("needs a device beside the processor")
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0,0")
    monkeypatch.setenv("GGML_VK_DISABLE_FUSION", "1")
    asked = "from runtimes.models import registry as r; print(len(r.backend('llamacpp').devices()))"
    counted = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True)
    if int(counted.stdout) < 2:
        pytest.skip("needs two devices beside the processor")
    write_rows(batch.source, questions(8))
    done = ingot(*batch.words("--max-tokens", "8", "--engines", "auto", "--json"))
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["answered"], len(end["engines"])) == (8, 2)
    assert len({engine["where"] for engine in end["engines"]}) == 2
