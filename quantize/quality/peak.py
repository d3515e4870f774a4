"""The most memory that a process has held, pages of mapped files and GPU memory included."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
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


class GpuPeak:
    """A context manager that watches how much memory this process takes on all NVIDIA GPUs.

    ``nbytes`` is the most that was seen; 0 where there is no GPU or its driver's Python binding.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._nvml: Any = None

    def __enter__(self) -> GpuPeak:
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # no binding, or no driver: there is nothing to watch
            return self
        self._nvml = pynvml
        self._thread = threading.Thread(target=self._watch, daemon=True, name="gpu-peak")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._nvml.nvmlShutdown()

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY):
            self.nbytes = max(self.nbytes, self._used())

    def _used(self) -> int:
        nvml, total = self._nvml, 0
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.pid == os.getpid():
                        total += int(process.usedGpuMemory or 0)
        except nvml.NVMLError:
            return 0
        return total
