"""The most memory that this process has held, pages of mapped files and GPU memory included."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_EVERY = 0.02  # seconds between looks at the GPUs


def peak_resident() -> int:
    """Bytes of main memory, weights that are mapped from their file included.

    Linux's VmHWM is of this program alone; ``ru_maxrss`` would begin with what the parent held.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        import psutil

        most = int(psutil.Process().memory_info().peak_wset)
    else:
        import resource

        # Bytes on macOS, KiB elsewhere (getrusage(2)).
        unit = 1 if sys.platform == "darwin" else 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return most


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
