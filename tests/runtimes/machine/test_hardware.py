from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.batch.schedule.engines import free_memory
from app.models.catalog import ModelEntry, Origin, fit
from runtimes.engine.loading import load_runner
from runtimes.errors import OutOfMemoryError
from runtimes.machine import cgroup, cpu, hardware
from runtimes.machine.cpu import CpuUse, cpu_use, others_share
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings


@pytest.fixture(autouse=True)
def fresh_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_HOME", str(tmp_path))


def test_this_machine() -> None:
    found = hardware.detect()
    assert found.cpu
    assert 1 <= found.usable_cores <= found.logical_cores
    assert 1 <= found.physical_cores <= found.logical_cores
    assert 0 < found.ram_available <= found.ram_total <= psutil.virtual_memory().total
    if sys.platform == "linux" and found.architecture == "x86_64":
        assert ("avx2" in found.instruction_sets) == ("avx2" in Path("/proc/cpuinfo").read_text())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_limits_the_usable_cores() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert hardware.detect().usable_cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


MIB = 1 << 20
V2 = "0::/user.slice/app.scope\n"
V1 = "5:devices:/\n4:cpu,memory:/docker/abc\n0::/\n"
STAT = "anon 100\nactive_file {0}\ninactive_file {1}\n"
TOTALS = "active_file 7\ninactive_file 7\ntotal_active_file {0}\ntotal_inactive_file {1}\n"


def version_2(folder: str) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/{folder}cpu.max": "150000 100000\n",
        f"sys/fs/cgroup/{folder}memory.max": f"{512 * MIB}\n",
        f"sys/fs/cgroup/{folder}memory.current": f"{400 * MIB}\n",
        f"sys/fs/cgroup/{folder}memory.stat": STAT.format(100 * MIB, 88 * MIB),
    }


def version_1(folder: str) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/cpu/{folder}cpu.cfs_quota_us": "150000\n",
        f"sys/fs/cgroup/cpu/{folder}cpu.cfs_period_us": "100000\n",
        f"sys/fs/cgroup/memory/{folder}memory.limit_in_bytes": f"{512 * MIB}\n",
        f"sys/fs/cgroup/memory/{folder}memory.usage_in_bytes": f"{400 * MIB}\n",
        f"sys/fs/cgroup/memory/{folder}memory.stat": TOTALS.format(100 * MIB, 88 * MIB),
    }


WITHOUT_LIMITS = {
    "sys/fs/cgroup/cpu.max": "max 100000\n",
    "sys/fs/cgroup/memory.max": "max\n",
    "sys/fs/cgroup/memory.current": f"{400 * MIB}\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{400 * MIB}\n",
}


@pytest.mark.parametrize(
    ("group", "files"),
    [
        (V2, version_2("user.slice/app.scope/")),
        (V2, version_2("user.slice/")),  # the group around its own
        (V2, version_2("")),  # within a container
        (V1, version_1("docker/abc/")),
        (V1, version_1("")),
    ],
)
def test_a_containers_limits_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, files: dict[str, str]
) -> None:
    system(tmp_path, group, files, monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8 if logical else 4)
    assert cpu.usable_processors() == cpu.available_cores() == 2
    # Pages of files can be had again.
    assert hardware.memory_now() == (512 * MIB, 300 * MIB)


@pytest.mark.parametrize("group", [V2, V1, ""])
def test_a_container_without_limits_has_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    system(tmp_path, group, WITHOUT_LIMITS, monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8 if logical else 4)
    assert cpu.usable_processors() == 8
    assert cpu.available_cores() == 4
    assert hardware.memory_now()[0] == psutil.virtual_memory().total


def test_a_quota_of_less_than_a_processor_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(tmp_path, V2, {"sys/fs/cgroup/cpu.max": "20000 100000\n"}, monkeypatch)
    assert cpu.usable_processors() == cpu.available_cores() == 1


def system(root: Path, group: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "ROOT", root)
    for name, text in {"proc/self/cgroup": group, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_what_is_loaded_is_measured_against_the_containers_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf: Path
) -> None:
    """Models, slots, prefixes: each asks what is free, and none the machine instead."""
    limits = version_2("")
    limits["sys/fs/cgroup/memory.max"] = str(213 * MIB)  # 1 MiB is left
    system(tmp_path, V2, limits, monkeypatch)
    assert free_memory() == hardware.buffer_bytes() * 8 == MIB
    with pytest.raises(OutOfMemoryError, match=r"0\.00 GiB"):
        load_runner(read_model(gguf), RunnerSettings())
    assert fit(ModelEntry(str(gguf), "pebble", "q8_0", Origin.FILE, gguf)).free == MIB


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


def test_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_MEASURE_S", 0.05)
    # A buffer that fits the cache would report the cache's speed, ten times the memory's.
    caches = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    cache = int(caches.read_text().strip().rstrip("K")) << 10 if caches.exists() else 1 << 20
    assert cache < hardware.buffer_bytes() < psutil.virtual_memory().total / 4
    # From a slow memory card's controller to the largest server socket.
    assert 0.5e9 < hardware.memory_bandwidth(hardware.detect().usable_cores) < 2e12


def test_what_other_programs_take_of_the_processor():
    """Another process that computes for 0.25 s is seen, however busy the machine is."""
    before = cpu_use()
    with subprocess.Popen(
        [sys.executable, "-Sc", "import time\nwhile time.process_time() < 0.25: pass"]
    ) as other:
        other.wait()
    after = cpu_use()
    taken = others_share([(before, after)]) * (after.total - before.total)
    assert taken > 0.1  # the system counts in hundredths of a second


def test_shares_of_several_spans_count_by_their_length():
    long = (CpuUse(0, 0, 0), CpuUse(8, 6, 2))
    short = (CpuUse(10, 7, 2), CpuUse(12, 7.5, 2.5))
    assert others_share([long]) == 0.5
    assert others_share([short]) == 0
    assert others_share([long, short]) == 0.4
    assert others_share([]) == 0
