"""The most memory that a process has had resident."""

from __future__ import annotations

import re
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class PeakMemory:
    """Look now and then: the kernel keeps the peak (Linux), or the largest size seen counts."""

    def __init__(self) -> None:
        self.bytes: int | None = None

    def look(self, pid: int | None) -> int | None:
        """The peak so far, in bytes; the last one known when the process is gone."""
        if pid is not None:
            self.bytes = max(self.bytes or 0, _kernels(pid) or _resident(pid)) or None
        return self.bytes


def _kernels(pid: int) -> int:
    """VmHWM of proc_pid_status(5); 0 where there is none."""
    try:
        found = _PEAK.search(
            Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        )
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _resident(pid: int) -> int:
    import psutil

    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(getattr(info, "peak_wset", 0) or info.rss)
