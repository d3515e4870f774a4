"""Measured memory bandwidth: what bounds the speed of decoding one row."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtimes.machine import cgroup
from runtimes.machine.hardware import memory_now

log = logging.getLogger(__name__)

_BUFFER = 256 << 20  # bytes
_MEASURE_S = 0.25


def buffer_bytes() -> int:
    """Twice the last-level cache, 256 MiB at least; less where that would fill the memory."""
    size = cgroup.kernel_text(Path("/sys/devices/system/cpu/cpu0/cache/index3/size")).removesuffix(
        "K"
    )
    cache = int(size) << 10 if size.isdigit() else 0
    return min(max(_BUFFER, 2 * cache), memory_now()[1] // 8)


def memory_bandwidth(threads: int) -> float:
    """Bytes a second that so many threads together read from memory: they sweep a buffer larger
    than the caches, one part a thread, and their best sweeps count. Takes under half a second."""
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
