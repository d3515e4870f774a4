"""``Hardware``: what this machine has that decides how fast a model runs on it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

from runtimes.cpu import cpu_name, instruction_sets


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; bytes of memory."""

    index: int
    name: str
    memory_total: int
    memory_free: int
    compute_capability: str
    driver: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """Processor, memory and GPUs, within the limits that a container sets.

    ``usable_cores`` is how many logical cores this process may run on.
    """

    cpu: str
    architecture: str
    physical_cores: int
    logical_cores: int
    usable_cores: int
    instruction_sets: tuple[str, ...]
    ram_total: int
    ram_available: int
    gpus: tuple[Gpu, ...]


def detect() -> Hardware:
    """Look at this machine now; takes a few milliseconds, more with a GPU driver to ask."""
    from runtimes.gpus import find_gpus

    logical = psutil.cpu_count(logical=True) or 1
    total, available = memory_now()
    return Hardware(
        cpu=cpu_name(),
        architecture=platform.machine(),
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=_usable_cores(logical),
        instruction_sets=instruction_sets(),
        ram_total=total,
        ram_available=available,
        gpus=find_gpus(),
    )


def _usable_cores(logical: int) -> int:
    """Cores after affinity and a container's quota, rounded up to whole ones."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        usable = min(usable, max(1, -(-int(quota) // int(period))))
    return usable


def memory_now() -> tuple[int, int]:
    """Total and available bytes, the smaller of the machine's and the container's."""
    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    limit = _read("/sys/fs/cgroup/memory.max")
    used = _read("/sys/fs/cgroup/memory.current")
    if limit.isdigit() and used.isdigit():
        total = min(total, int(limit))
        available = min(available, max(0, int(limit) - int(used)))
    return total, available


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
