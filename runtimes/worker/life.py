"""Whether a process that loads a model does anything at all.

It is judged by the system's account of it and of its own children, not by a message that it would
have to send: a native load can hold Python's lock for minutes and be well, and one that is
deadlocked in native code would let a thread send such messages for ever.
"""

from __future__ import annotations

import queue
import time
from typing import NamedTuple, TypeVar

import psutil

T = TypeVar("T")

# How much longer it may compute without reading anything or taking memory: no load does so for
# long, but how long a slow processor needs is not known.
_COMPUTING = 10


class _Account(NamedTuple):
    cpu_s: float
    memory: int  # the most so far: the system takes it back from a process that does nothing
    read: int

    def moved(self, before: _Account) -> bool:
        """Whether it did anything but compute."""
        return self.memory > before.memory or self.read != before.read


class Life:
    """Time without a sign of life, and time without anything but computing.

    Time in which this process did not run either (Ctrl-Z, a machine that slept) does not count.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        self.tick_s = min(1.0, limit_s / 4)
        self._pid, self._limit_s = pid, limit_s
        self._own = self._children = _Account(0.0, 0, 0)
        self._silent = self._idle = 0.0

    def wait(self, outcome: queue.SimpleQueue[T]) -> T | None:
        """What comes of it; None when nothing did for a tick. Look for ``problem`` then."""
        began = time.monotonic()
        try:
            return outcome.get(timeout=self.tick_s)
        except queue.Empty:
            pass
        spent = min(time.monotonic() - began, 2 * self.tick_s)
        self._silent += spent
        self._idle += spent
        try:
            self._judge(psutil.Process(self._pid))
        except (psutil.Error, OSError):  # the system does not tell
            self._silent = self._idle = 0.0
        return None

    def _judge(self, process: psutil.Process) -> None:
        before, self._own = self._own, _account([process], self._own)
        if self._own.moved(before):
            self._silent = self._idle = 0.0
            return
        if self._own.cpu_s != before.cpu_s:
            self._silent = 0.0
            return
        # A self-test of the native library runs in a child. To find children takes a while.
        before = self._children
        self._children = _account(process.children(recursive=True), before)
        if self._children != before:
            self._silent = self._idle = 0.0

    @property
    def problem(self) -> str | None:
        """Why it counts as hung; None while it does not."""
        if self._silent >= self._limit_s:
            return f"it neither computed nor read anything for {self._limit_s:g} s"
        if self._idle >= _COMPUTING * self._limit_s:
            return f"it computed for {self._idle:.0f} s, but neither read nor stored anything"
        return None


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it (SIGSTOP, SIGTSTP, a debugger)."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except (psutil.Error, OSError):
        return False


def _account(processes: list[psutil.Process], before: _Account) -> _Account:
    return _Account(
        sum(sum(one.cpu_times()[:2]) for one in processes),
        max(before.memory, sum(one.memory_info().rss for one in processes)),
        sum(_read(one) for one in processes),
    )


def _read(process: psutil.Process) -> int:
    if not hasattr(process, "io_counters"):
        return 0
    counters = process.io_counters()
    return int(getattr(counters, "read_chars", 0) + counters.read_bytes)
