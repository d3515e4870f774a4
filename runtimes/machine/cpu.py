"""The processor's name and instruction sets. Standard library only (see llamacpp/build.py)."""

import itertools
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runtimes.machine import cgroup

# Sets that the runtimes have special kernels for, as in /proc/cpuinfo; our names have dashes.
_INSTRUCTION_SETS = (
    "sse4_2 avx f16c fma avx2 avx_vnni avx512f avx512bw avx512vl"
    " avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16"
    " asimd asimddp i8mm bf16 sve sve2 sme".split()
)
_OTHER_NAMES = {"sse4_2": "sse4.2", "asimd": "neon", "asimddp": "dotprod"}
# macOS: sysctl name -> ours.
_SYSCTL_SETS = {
    "hw.optional.neon": "neon",
    "hw.optional.arm.FEAT_DotProd": "dotprod",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_SME": "sme",
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
}


def cpu_name() -> str:
    """Return the processor's model name."""
    info = _cpuinfo()
    if name := info.get("model name"):
        return name
    if sys.platform == "darwin" and (name := _sysctl("machdep.cpu.brand_string")):
        return name
    part = " ".join(info[k] for k in ("CPU implementer", "CPU part") if k in info)
    return part or platform.processor() or platform.machine()


def instruction_sets() -> tuple[str, ...]:
    """The instruction sets that runtimes have special kernels for, of those that are there."""
    if sys.platform == "darwin":
        found = [ours for name, ours in _SYSCTL_SETS.items() if _sysctl(name) == "1"]
    else:
        present = all_flags().split()
        there = [name for name in _INSTRUCTION_SETS if name in present]
        found = [_OTHER_NAMES.get(name, name.replace("_", "-")) for name in there]
    return tuple(found)


def cpu_identity() -> str:
    """Name and instruction sets: what decides which native kernels run."""
    return f"{cpu_name()}; {platform.machine()}; {' '.join(instruction_sets())}"


def all_flags() -> str:
    """Every flag of the processor: what `-march=native` depends on."""
    info = _cpuinfo()
    flags = info.get("flags") or info.get("Features") or ""
    return " ".join(instruction_sets()) if sys.platform == "darwin" else flags


@cache
def _cpuinfo() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo; empty on other systems."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            entry: dict[str, str] = {}
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                entry[name.strip()] = value.strip()
            return entry
    except OSError:
        return {}


@cache
def _sysctl(name: str) -> str:
    try:
        return subprocess.run(
            ["sysctl", "-n", name], capture_output=True, text=True, check=False, timeout=5
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def allowed_cpus() -> set[int]:
    """The logical processors that this process may run on; all where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Seconds of the cores that this process may use, since the machine started: all of them,
    those in which any program ran (on a virtual machine its neighbours too), and this process's."""

    total: float
    busy: float
    own: float


def cpu_use() -> CpuUse:
    """The use up to now."""
    import psutil

    cores = psutil.cpu_times(percpu=True)
    cores = [cores[i] for i in allowed_cpus() if i < len(cores)] or cores
    idle = sum(core.idle + getattr(core, "iowait", 0.0) for core in cores)
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    busy = sum(getattr(core, kind, 0.0) for core in cores for kind in kinds)
    return CpuUse(busy + idle, busy, time.process_time())


def others_share(spans: Iterable[tuple[CpuUse, CpuUse]]) -> float:
    """The share (0 to 1) of the processor that other programs took in ``spans``, each given by the
    use before and after."""
    total = others = 0.0
    for before, after in spans:
        total += after.total - before.total
        others += (after.busy - before.busy) - (after.own - before.own)
    return min(max(others / total, 0.0), 1.0) if total > 0 else 0.0


def usable_processors() -> int:
    """Logical processors that this process may use: what a container's quota or taskset leaves, a
    part of one counting as a whole.
    """
    allowed = len(allowed_cpus())
    return min(allowed, math.ceil(cgroup.processors() or allowed))


def available_cores() -> int:
    """Cores that this process may use: ``usable_processors``, two of a core counted once."""
    import psutil

    usable = usable_processors()
    return min(usable, psutil.cpu_count(logical=False) or usable)


# Which logical processors share a core, and which cores are near the same memory.
_SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core: the numbers of its logical processors, and its NUMA node."""

    cpus: tuple[int, ...]
    node: int = 0


def cores() -> tuple[Core, ...]:
    """The cores that this process may run on, in the order of their nodes; of a core that it may
    use in part only that part. Empty where the system has no affinity (macOS, Windows).

    What Linux' /sys/devices/system does not tell is taken as one processor a core and one node.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    allowed = os.sched_getaffinity(0)
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in _SYSTEM.glob("node/node[0-9]*")
        for cpu in parse_list(cgroup.kernel_text(folder / "cpulist"))
    }
    found = set()
    for cpu in allowed:
        listed = _SYSTEM / f"cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings = parse_list(cgroup.kernel_text(listed))
        shared = tuple(sorted(set(siblings) & allowed)) or (cpu,)
        found.add(Core(shared, node_of.get(cpu, 0)))
    return tuple(sorted(found, key=lambda core: (core.node, core.cpus)))


def shares(of: Sequence[Core], count: int) -> tuple[tuple[Core, ...], ...]:
    """The cores dealt out to ``count`` users, as evenly as whole cores allow and neighbours
    together: as many users as nodes get a node each if all nodes have the same size."""
    size, more = divmod(len(of), count)
    ends = [size * i + min(i, more) for i in range(count + 1)]
    return tuple(tuple(of[a:b]) for a, b in itertools.pairwise(ends))


def parse_list(text: str) -> list[int]:
    """The numbers of a list as Linux writes it: ``0-3,8``. Empty for anything else."""
    numbers: list[int] = []
    try:
        for part in filter(None, text.strip().split(",")):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    except ValueError:
        return []
    return numbers
