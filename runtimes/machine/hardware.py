"""``Hardware``: what this machine has that decides how fast a model runs on it."""

import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

from runtimes.machine import cgroup
from runtimes.machine.cpu import cpu_name, instruction_sets, usable_processors
from runtimes.machine.gpus import Gpu, find_gpus


@dataclass(frozen=True, slots=True)
class Hardware:
    """Processor, memory and GPUs, within the limits that a container sets."""

    cpu: str
    architecture: str
    physical_cores: int
    logical_cores: int
    usable_cores: int  # logical ones that this process may run on
    instruction_sets: tuple[str, ...]
    ram_total: int
    ram_available: int
    gpus: tuple[Gpu, ...]


def detect() -> Hardware:
    """Look at this machine now; takes a few milliseconds, more with a GPU driver to ask."""
    logical = psutil.cpu_count(logical=True) or 1
    total, available = memory_now()
    return Hardware(
        cpu=cpu_name(),
        architecture=platform.machine(),
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=usable_processors(),
        instruction_sets=instruction_sets(),
        ram_total=total,
        ram_available=available,
        gpus=find_gpus(),
    )


def memory_now(root: Path = cgroup.ROOT) -> tuple[int, int]:
    """Total and available bytes, the smaller of the machine's and the container's."""
    memory = psutil.virtual_memory()
    limits = cgroup.memory(root)
    total = min([int(memory.total), *(limit for limit, _ in limits)])
    return total, min([int(memory.available), *(left for _, left in limits)])
