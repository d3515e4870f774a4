"""How a worker process ended, in words and as a cause that something may follow from.

Linux counts whom it killed for lack of memory: of a control group (``oom_kill`` in memory.events of
version 2, in memory.oom_control of version 1: Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst), and of the whole machine (``oom_kill`` in /proc/vmstat). Other killers
(earlyoom, systemd-oomd) leave no count: they act when little has been free for a while.
"""

import re
import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from runtimes.machine.cgroup import ROOT, groups, kernel_text
from runtimes.machine.processes import ending, import_failure

_LINE_SHOWN = 300

# What a native library says before it aborts, and what it says when it has no memory.
_LAST_WORDS = re.compile(r"assert|abort|terminate|what\(\)|error|fatal|fail", re.IGNORECASE)
_NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|failed to allocate|cannot allocate memory|MemoryError", re.IGNORECASE
)
_SIGNAL_WORDS = {
    "SIGSEGV": "a wild memory access",
    "SIGBUS": "a wild memory access, or a model file that changed on disk",
    "SIGILL": "an instruction that this processor does not have",
    "SIGABRT": "the native library gave up",
    "SIGFPE": "an arithmetic error",
}

_SCARCE = 0.1  # of all memory; earlyoom's own limit
_WINDOW_S = 10.0  # a big process takes seconds to end after it was killed
_STALE_S = 30.0
_FILES = (("", "memory.events"), ("memory", "memory.oom_control"))  # by the controller's name


class Cause(StrEnum):
    """Why a worker process ended without being told to."""

    CRASH = "crash"  # a signal of its own making, or an exit
    ILLEGAL = "illegal"  # an instruction that the processor does not have
    MEMORY = "memory"  # it or the system says that memory ran out
    SCARCE = "scarce"  # killed from outside while little memory was free
    KILLED = "killed"  # from outside, or stopped there, and memory was not short
    IMPORT = "import"  # Python could not import what it needs, which no settings change
    HANG = "hang"  # it was killed here, after a step or a load without end


_KILLS = {
    Cause.MEMORY: "was killed: the machine ran out of memory",
    Cause.SCARCE: "was killed from outside (SIGKILL) while little memory was free",
    Cause.KILLED: "was killed from outside (SIGKILL)",
}


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker process ended; ``text`` continues the words "the worker process"."""

    cause: Cause
    text: str


def explain(code: int, lines: list[str], killed: Cause) -> Death:
    """From its exit code (negative: a signal), the last lines that it said, and what a SIGKILL
    would mean."""
    said = _last_words(lines)
    if code > 0 and (failure := import_failure("\n".join(lines))):
        return Death(Cause.IMPORT, failure)
    no_memory = any(_NO_MEMORY.search(line) for line in lines[-10:])
    crash = Cause.MEMORY if no_memory else Cause.CRASH
    if code >= 0:
        return Death(crash, f"ended with code {code}" + said)
    name = ending(code)
    if name == "SIGKILL":
        return Death(killed, _KILLS[killed])
    if name in {"SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"}:
        return Death(Cause.KILLED, f"was ended from outside ({name})")
    words = f" ({_SIGNAL_WORDS[name]})" if name in _SIGNAL_WORDS else ""
    cause = Cause.ILLEGAL if name == "SIGILL" else crash
    return Death(cause, f"died of {name}{words}{said}")


def _last_words(lines: list[str]) -> str:
    """The last line that tells a reason, else the last one, as the end of a sentence."""
    telling = [line for line in lines if _LAST_WORDS.search(line)] or lines
    return f": {telling[-1].strip()[:_LINE_SHOWN]}" if telling else ""


class OomDetector:
    """Whether memory was short when a process was killed. ``look`` about once a second, from one
    thread at a time, while there is work."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int | None, float]] = deque()  # time, kills, share free
        self.look()

    def look(self) -> None:
        """See how it is now."""
        now = time.monotonic()
        self._looks.append((now, oom_kills(), free_share()))
        # The first one that is kept is older than the window: what it counted came before.
        while len(self._looks) > 1 and self._looks[1][0] < now - _WINDOW_S:
            self._looks.popleft()

    def cause(self) -> Cause:
        """Of a SIGKILL just now."""
        looks, now = list(self._looks), time.monotonic()
        before, after = looks[0][1], oom_kills()
        if before is not None and after is not None and after > before:
            return Cause.MEMORY
        lately = [free for at, _, free in looks if at > now - _STALE_S]
        return Cause.SCARCE if min(lately, default=1.0) < _SCARCE else Cause.KILLED


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
    files = [group / name for controller, name in _FILES for group in groups(controller, root)]
    counts = (_count(path) for path in (*files, root / "proc/vmstat"))
    return next((count for count in counts if count is not None), None)


def _count(path: Path) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", kernel_text(path), re.MULTILINE)
    return int(found[1]) if found else None
