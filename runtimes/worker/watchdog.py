"""Notices that a worker process makes no progress, whether it hangs, is stopped or lost a lock.

Once it has loaded, by what it says. One that loads is judged by the system's account of it and of
its own children, not by a message that it would have to send: a native load can hold Python's lock
for minutes and be well, and one that is deadlocked in native code would let a thread send such
messages for ever.

Time in which this process did not run either (Ctrl-Z, a machine that slept) does not count.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import psutil

T = TypeVar("T")

# How much longer it may compute without reading anything or taking memory: no load does so for
# long, but how long a slow processor needs is not known.
_COMPUTING = 10


class Watchdog:
    """Calls ``expired`` when there is work and nothing has moved for ``limit_s`` seconds.

    ``look`` is called about once a second while there is work, and says whether there still is: it
    sleeps while there is none.
    """

    def __init__(
        self, limit_s: float, look: Callable[[], bool], expired: Callable[[float], None]
    ) -> None:
        self._limit_s = limit_s
        self._tick_s = min(1.0, limit_s / 4)
        self._look, self._expired = look, expired
        self._moves = 0
        self._work = threading.Event()
        self._stopped = False
        threading.Thread(target=self._run, name="ingot-watchdog", daemon=True).start()

    def work(self) -> None:
        """There is work now."""
        if not self._work.is_set():
            self._work.set()

    def moved(self) -> None:
        """Something has moved. Called from one thread at a time."""
        self._moves += 1

    def stop(self) -> None:
        """End it."""
        self._stopped = True
        self._work.set()

    def _run(self) -> None:
        while not self._stopped:
            self._work.wait()
            self._work.clear()
            if self._watch():
                self._expired(self._limit_s)

    def _watch(self) -> bool:
        """Until there is no work left, or the time is up: then True."""
        still, moves = 0.0, self._moves
        while self._look() and not self._stopped:
            began = time.monotonic()
            time.sleep(self._tick_s)
            if self._moves != moves:
                still, moves = 0.0, self._moves
                continue
            still += min(time.monotonic() - began, 2 * self._tick_s)
            if still >= self._limit_s:
                return True
        return False


class _Account(NamedTuple):
    """Of the process with its children: a self-test of the native library runs in one."""

    cpu_s: float = 0.0
    memory: int = 0  # the most so far: the system takes it back from a process that does nothing
    read: int = 0


class LoadMonitor:
    """Time without a sign of life, and time without anything but computing."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid, self._limit_s = pid, limit_s
        self._tick_s = min(1.0, limit_s / 4)
        self._account = _Account()
        self._silent_s = self._computing_s = 0.0

    def wait(self, outcome: queue.SimpleQueue[T]) -> T | None:
        """What comes of it; None when nothing did for a tick. Look for ``problem`` then."""
        began = time.monotonic()
        try:
            return outcome.get(timeout=self._tick_s)
        except queue.Empty:
            pass
        spent = min(time.monotonic() - began, 2 * self._tick_s)
        before = self._account
        try:
            now = self._account = _account(self._pid, before)
        except (psutil.Error, OSError):  # the system does not tell
            self._silent_s = self._computing_s = 0.0
            return None
        moved = now.memory > before.memory or now.read != before.read
        self._computing_s = 0.0 if moved else self._computing_s + spent
        self._silent_s = 0.0 if now != before else self._silent_s + spent
        return None

    @property
    def problem(self) -> str | None:
        """Why it counts as hung; None while it does not."""
        if self._silent_s >= self._limit_s:
            return f"it neither computed nor read anything for {self._limit_s:g} s"
        if self._computing_s >= _COMPUTING * self._limit_s:
            return (
                f"it computed for {self._computing_s:.0f} s, but neither read nor stored anything"
            )
        return None


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it (SIGSTOP, SIGTSTP, a debugger)."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except (psutil.Error, OSError):
        return False


def _account(pid: int, before: _Account) -> _Account:
    own = psutil.Process(pid)
    processes = [own, *own.children(recursive=True)]
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
