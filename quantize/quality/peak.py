"""The most memory that a process has held, pages of mapped files and GPU memory included."""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EVERY = 0.02  # seconds between looks at the GPUs
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_resident(pid: int | None = None) -> int:
    """Bytes of main memory that the process ``pid`` (None: this one) has held, weights that are
    mapped from their file included; 0 when it is gone.

    On Linux VmHWM (proc_pid_status(5)) is of the program alone; ``ru_maxrss`` would begin with what
    the parent held. Where the kernel tells no peak of another process, what it holds now.
    """
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid or 'self'}/status")
        if found := _PEAK.search(status.read_text(encoding="ascii", errors="replace")):
            return int(found[1]) * 1024
    if sys.platform == "darwin" and pid is None:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    import psutil

    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(getattr(info, "peak_wset", 0) or info.rss)


@dataclass
class GpuPeak:
    """The most memory that was seen; 0 where there is no GPU or its driver's Python binding."""

    nbytes: int = 0


@contextlib.contextmanager
def gpu_peak() -> Iterator[GpuPeak]:
    """Watch how much memory this process takes on all NVIDIA GPUs while the block runs."""
    peak, done = GpuPeak(), threading.Event()
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no binding, or no driver: there is nothing to watch
        yield peak
        return

    def watch() -> None:
        while not done.wait(_EVERY):
            with contextlib.suppress(pynvml.NVMLError):
                peak.nbytes = max(peak.nbytes, _used(pynvml))

    thread = threading.Thread(target=watch, daemon=True, name="gpu-peak")
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        pynvml.nvmlShutdown()


def _used(nvml: Any) -> int:
    """Bytes of this process on all GPUs now."""
    gpus = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    running = (p for gpu in gpus for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
    return sum(int(p.usedGpuMemory or 0) for p in running if p.pid == os.getpid())
