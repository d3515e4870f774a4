from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from runtimes import bandwidth, cpu, hardware
from runtimes.remembered import recall, remember


@pytest.fixture(autouse=True)
def fresh_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_HOME", str(tmp_path))


def test_this_machine() -> None:
    found = hardware.detect()
    assert found.cpu
    assert 1 <= found.usable_cores <= found.logical_cores
    assert 1 <= found.physical_cores <= found.logical_cores
    assert 0 < found.ram_available <= found.ram_total <= psutil.virtual_memory().total
    if found.architecture == "x86_64":
        assert "avx2" in found.instruction_sets  # llama.cpp's build here would crawl without it


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_limits_the_usable_cores() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert hardware.detect().usable_cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_containers_limits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {
        "/sys/fs/cgroup/cpu.max": "150000 100000",
        "/sys/fs/cgroup/memory.max": str(512 << 20),
        "/sys/fs/cgroup/memory.current": str(112 << 20),
    }
    monkeypatch.setattr(hardware, "_read", lambda path: limits.get(path, ""))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    found = hardware.detect()
    assert found.usable_cores == 2
    assert found.ram_total == 512 << 20
    assert found.ram_available <= 400 << 20
    limits["/sys/fs/cgroup/cpu.max"] = "max 100000"
    limits["/sys/fs/cgroup/memory.max"] = "max"
    assert hardware.detect().usable_cores == 8
    assert hardware.detect().ram_total == psutil.virtual_memory().total


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/cpuinfo")
def test_instruction_sets_of_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    xeon = {"model name": "Xeon", "flags": "fpu avx2 avx512f avx512_vnni amx_tile amx_int8"}
    monkeypatch.setattr(cpu, "_cpuinfo", lambda: xeon)
    assert cpu.instruction_sets() == ("avx2", "avx512f", "avx512-vnni", "amx-tile", "amx-int8")
    assert cpu.cpu_identity().startswith("Xeon; ")
    arm = {"CPU implementer": "0x41", "CPU part": "0xd4f", "Features": "fp asimd asimddp i8mm sve2"}
    monkeypatch.setattr(cpu, "_cpuinfo", lambda: arm)
    assert cpu.cpu_name() == "0x41 0xd4f"
    assert cpu.instruction_sets() == ("neon", "dotprod", "i8mm", "sve2")


def test_bandwidth_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = hardware.detect()
    first = bandwidth.memory_bandwidth(machine)
    # From a slow memory card's controller to the largest server socket.
    assert 0.5e9 < first < 2e12
    monkeypatch.setattr(bandwidth, "measure_bandwidth", lambda _threads: 1.0)
    assert bandwidth.memory_bandwidth(machine) == first
    assert bandwidth.memory_bandwidth(machine, again=True) == 1.0
    assert bandwidth.memory_bandwidth(machine) == 1.0


def test_more_is_swept_than_the_caches_hold() -> None:
    """A buffer that fits the cache would report the cache's speed, ten times the memory's."""
    caches = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    cache = int(caches.read_text().strip().rstrip("K")) << 10 if caches.exists() else 1 << 20
    assert cache < bandwidth.buffer_bytes() < psutil.virtual_memory().total / 4


def test_what_is_remembered_survives_and_what_is_damaged_is_forgotten(tmp_path: Path) -> None:
    assert recall("thing") == {}
    remember("thing", {"a": 1})
    assert recall("thing") == {"a": 1}
    assert [p.name for p in (tmp_path / "state").iterdir()] == ["thing.json"]
    (tmp_path / "state" / "thing.json").write_bytes(b'{"a": \xff')
    assert recall("thing") == {}


def test_a_state_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INGOT_HOME", str(tmp_path / "file"))
    remember("thing", {"a": 1})
    assert recall("thing") == {}
