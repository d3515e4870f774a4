"""How a worker process ended, in words and as a cause that something may follow from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from runtimes.machine.processes import ending, import_failure
from runtimes.worker.pressure import Pressure

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


class Cause(StrEnum):
    """Why a worker process ended without being told to."""

    CRASH = "crash"  # a signal of its own making, or an exit
    ILLEGAL = "illegal"  # an instruction that the processor does not have
    MEMORY = "memory"  # it or the system says that memory ran out
    SCARCE = "scarce"  # killed from outside while little memory was free
    KILLED = "killed"  # from outside, or stopped there, and memory was not short
    IMPORT = "import"  # Python could not import what it needs, which no settings change
    HANG = "hang"  # it was killed here, after a step or a load without end


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker process ended; ``text`` continues the words "the worker process"."""

    cause: Cause
    text: str


def explain(code: int, lines: list[str], pressure: Pressure) -> Death:
    """From its exit code (negative: a signal), the last lines that it said, and the memory."""
    said = _last_words(lines)
    if code > 0 and (failure := import_failure("\n".join(lines))):
        return Death(Cause.IMPORT, failure)
    if code >= 0:
        return Death(_no_memory(lines) or Cause.CRASH, f"ended with code {code}" + said)
    name = ending(code)
    if name == "SIGKILL":
        if pressure is Pressure.RAN_OUT:
            return Death(Cause.MEMORY, "was killed: the machine ran out of memory")
        if pressure is Pressure.SCARCE:
            return Death(
                Cause.SCARCE, "was killed from outside (SIGKILL) while little memory was free"
            )
        return Death(Cause.KILLED, "was killed from outside (SIGKILL)")
    if name in {"SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"}:
        return Death(Cause.KILLED, f"was ended from outside ({name})")
    words = f" ({_SIGNAL_WORDS[name]})" if name in _SIGNAL_WORDS else ""
    cause = Cause.ILLEGAL if name == "SIGILL" else (_no_memory(lines) or Cause.CRASH)
    return Death(cause, f"died of {name}{words}{said}")


def _no_memory(lines: list[str]) -> Cause | None:
    return Cause.MEMORY if any(_NO_MEMORY.search(line) for line in lines[-10:]) else None


def _last_words(lines: list[str]) -> str:
    """The last line that tells a reason, else the last one, as the end of a sentence."""
    telling = [line for line in lines if _LAST_WORDS.search(line)] or lines
    return f": {telling[-1].strip()[:_LINE_SHOWN]}" if telling else ""
