"""``Hardware``: what this machine has that decides how fast a model runs on it."""

import logging
import platform
import time
from concurrent.futures import ThreadPoolExecutor
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


def memory_now() -> tuple[int, int]:
    """Total and available bytes, the smaller of the machine's and the container's."""
    memory = psutil.virtual_memory()
    limits = cgroup.memory()
    total = min([int(memory.total), *(limit for limit, _ in limits)])
    return total, min([int(memory.available), *(left for _, left in limits)])


log = logging.getLogger(__name__)

_BUFFER = 256 << 20  # bytes
# Measured memory bandwidth: what bounds the speed of decoding one row.
_MEASURE_S = 0.25


def buffer_bytes() -> int:
    """Twice the last-level cache, 256 MiB at least; less where that would fill the memory."""
    last = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    size = cgroup.kernel_text(last).removesuffix("K")
    cache = int(size) << 10 if size.isdigit() else 0
    return min(max(_BUFFER, 2 * cache), memory_now()[1] // 8)


def memory_bandwidth(threads: int) -> float:
    """Bytes a second that so many threads together read from memory: they sweep a buffer larger
    than the caches, one part a thread, and their best sweeps count. Takes under half a second."""
    import numpy as np  # the build of llama.cpp imports this module before anything is installed
    import numpy.typing as npt

    words = buffer_bytes() // 8
    # Written, not zeroed: untouched zero pages all map to one page, which stays in the cache.
    parts = np.array_split(np.ones(words, np.int64), threads)
    deadline = time.perf_counter() + _MEASURE_S

    def best_sweep(part: npt.NDArray[np.int64]) -> float:
        best = 0.0
        while time.perf_counter() < deadline or not best:
            # Of the thread's own time: what other programs take of the processor is not the
            # memory's doing.
            started = time.thread_time()
            np.bitwise_or.reduce(part)  # releases the GIL
            best = max(best, part.nbytes / max(time.thread_time() - started, 1e-9))
        return best

    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(best_sweep, parts))
    log.debug("memory bandwidth %.1f GB/s with %d threads", total / 1e9, threads)
    return total
