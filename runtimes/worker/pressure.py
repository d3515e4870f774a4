"""Whether memory was short when a process was killed.

Linux counts whom it killed for lack of memory: of a control group (``oom_kill`` in memory.events of
version 2, in memory.oom_control of version 1: Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst), and of the whole machine (``oom_kill`` in /proc/vmstat). Other killers
(earlyoom, systemd-oomd) leave no count: they act when little has been free for a while.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psutil

from runtimes.machine.cgroup import ROOT, groups

_SCARCE = 0.1  # of all memory; earlyoom's own limit
_WINDOW_S = 10.0  # a big process takes seconds to end after it was killed
_STALE_S = 30.0
_FILES = (("", "memory.events"), ("memory", "memory.oom_control"))  # by the controller's name


class Pressure(Enum):
    """What the memory says about a kill."""

    NONE = "none"
    SCARCE = "scarce"
    RAN_OUT = "ran out"


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    kills: int | None
    free: float


class MemoryLooks:
    """What was seen of the memory in the last seconds. ``look`` about once a second, from one
    thread at a time, while there is work."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()
        self.look()

    def look(self) -> None:
        """See how it is now."""
        now = time.monotonic()
        self._looks.append(_Look(now, oom_kills(), free_share()))
        # The first one that is kept is older than the window: what it counted came before.
        while len(self._looks) > 1 and self._looks[1].at < now - _WINDOW_S:
            self._looks.popleft()

    def judge(self) -> Pressure:
        """Of a kill just now."""
        looks, now = list(self._looks), time.monotonic()
        before, after = looks[0].kills, oom_kills()
        if before is not None and after is not None and after > before:
            return Pressure.RAN_OUT
        lately = [look.free for look in looks if look.at > now - _STALE_S]
        return Pressure.SCARCE if min(lately, default=1.0) < _SCARCE else Pressure.NONE


def free_share() -> float:
    """How much of the machine's memory can be had without swapping, from 0 to 1; 1 where the system
    does not tell."""
    try:
        memory = psutil.virtual_memory()
    except (psutil.Error, OSError):
        return 1.0
    return float(memory.available / memory.total)


def oom_kills(root: Path = ROOT) -> int | None:
    """Processes that Linux has killed for memory: of this control group, else of the machine.

    None where it does not tell.
    """
    for controller, name in _FILES:
        for group in groups(controller, root):
            if (count := _count(group / name)) is not None:
                return count
    return _count(root / "proc/vmstat")


def _count(path: Path) -> int | None:
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
