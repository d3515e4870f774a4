"""Measured memory bandwidth: what bounds the speed of decoding one row."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

from runtimes.cpu import cpu_identity
from runtimes.hardware import Hardware
from runtimes.remembered import recall, remember

log = logging.getLogger(__name__)

_BUFFER = 256 << 20  # bytes; beyond the caches of nearly every processor
_SMALL_BUFFER = 64 << 20
_MEASURE_S = 0.25
_MEMORY = "bandwidth"


def memory_bandwidth(hardware: Hardware, *, again: bool = False) -> float:
    """Bytes per second that all usable cores together read from memory.

    Measured in less than half a second on the first call on a machine, remembered afterwards.
    """
    machine = f"{cpu_identity()}; {hardware.usable_cores} cores"
    known = recall(_MEMORY)
    value = known.get("bytes_per_s")
    if not again and known.get("machine") == machine and isinstance(value, (int, float)):
        return float(value)
    measured = measure_bandwidth(hardware.usable_cores)
    remember(_MEMORY, {"machine": machine, "bytes_per_s": measured})
    return measured


def measure_bandwidth(threads: int, seconds: float = _MEASURE_S) -> float:
    """Sweep a buffer larger than the caches, one part a thread; the best sweep counts."""
    roomy = psutil.virtual_memory().available > 8 * _BUFFER
    words = (_BUFFER if roomy else _SMALL_BUFFER) // 8
    # Written, not zeroed: untouched zero pages all map to one page, which stays in the cache.
    buffer = np.full(words, 1, np.int64)
    parts = np.array_split(buffer, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        deadline = time.perf_counter() + seconds
        while True:
            started = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))  # releases the GIL
            ended = time.perf_counter()
            best = min(best, ended - started)
            if ended >= deadline:
                break
    log.debug("memory bandwidth %.1f GB/s with %d threads", buffer.nbytes / best / 1e9, threads)
    return buffer.nbytes / best
