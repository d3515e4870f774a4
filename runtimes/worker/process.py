"""One worker process: started, listened to, killed, and its end explained."""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Protocol

from runtimes.worker.place import Place, inherited
from runtimes.worker.wire import Load, Ready, Refused, Sender, receive

log = logging.getLogger(__name__)
_stderr_log = logging.getLogger("runtimes.worker.stderr")

_LINES_KEPT = 50
_LINE_SHOWN = 300
_STDERR_S = 1.0  # for the last lines after the end; a grandchild may hold the pipe longer

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
    KILLED = "killed"  # from outside, for a reason unknown
    HANG = "hang"  # it was killed here, after a step without end


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker process ended; ``text`` continues the words "the worker process"."""

    cause: Cause
    text: str


class Listener(Protocol):
    """Called on a thread of the process; ``died`` once, after the last ``received``."""

    def received(self, process: WorkerProcess, items: list[Any]) -> None:
        """Take a message."""

    def died(self, process: WorkerProcess) -> None:
        """The process is gone; ``process.death`` says how."""


class WorkerProcess:
    """A child that loads a model.

    ``outcome`` gets a Ready or a Refused, and a Death when the process ends before the caller has
    taken it over. ``ended`` is set when the process is gone and its listener knows it.
    """

    def __init__(self, order: Load, listener: Listener, place: Place) -> None:
        self.outcome: queue.SimpleQueue[Ready | Refused | Death] = queue.SimpleQueue()
        self.ended = threading.Event()
        self.death: Death | None = None
        self._listener = listener
        self._hang: str | None = None
        self._oom_kills = _oom_kills()
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._popen: subprocess.Popen[bytes] | None = None
        try:
            with _interrupts_held(), inherited(place):
                self._popen = subprocess.Popen(
                    [sys.executable, "-m", "runtimes.worker.child"],
                    env={**os.environ, **place.environment, "PYTHONPATH": _import_path()},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            self._connect(self._popen)
        except BaseException:  # Ctrl-C as soon as it is let in
            if self._popen is not None:
                self._popen.kill()
            raise
        self.pid = self._popen.pid
        log.debug("worker %d loads %s", self.pid, order.path)
        self.send(order)

    def _connect(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        # Detached, so that each end is closed once, by whoever uses it.
        self._sender = Sender(_own(popen.stdin), "ingot-worker-send")
        self.send: Callable[[object], None] = self._sender.put
        self._stderr = _thread(self._read_stderr, "stderr", popen.stderr)
        _thread(self._read, "receive", popen, _own(popen.stdout))

    def kill(self, hang: str | None = None) -> None:
        """End it at once, also when it is stopped or hangs; ``hang`` tells why."""
        self._hang = self._hang or hang
        if self._popen is not None:
            self._popen.kill()

    def _read(self, popen: subprocess.Popen[bytes], fd: int) -> None:
        try:
            for items in receive(fd):
                self._listener.received(self, items)
        except Exception:
            log.exception("what the worker process sent cannot be understood")
            popen.kill()
        code = popen.wait()
        self._sender.close(0)
        self._stderr.join(_STDERR_S)
        self.death = self._explain(code)
        log.debug("worker %d %s", popen.pid, self.death.text)
        self._listener.died(self)
        self.ended.set()

    def _read_stderr(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                line = raw.decode("utf-8", errors="replace").rstrip()
                if line:
                    self._lines.append(line)
                    _stderr_log.debug("%s", line)

    def _explain(self, code: int) -> Death:
        lines = list(self._lines)
        said = _last_words(lines)
        if self._hang is not None:
            return Death(Cause.HANG, f"was ended: {self._hang}")
        if code >= 0:
            text = f"ended with code {code}" + said
            return Death(_no_memory(lines) or Cause.CRASH, text)
        name = _signal_name(-code)
        words = f" ({_SIGNAL_WORDS[name]})" if name in _SIGNAL_WORDS else ""
        if name == "SIGKILL":
            before, after = self._oom_kills, _oom_kills()
            if before is not None and after is not None and after > before:
                return Death(Cause.MEMORY, "was killed: the machine ran out of memory")
            return Death(Cause.KILLED, "was killed from outside (SIGKILL)")
        if name in {"SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"}:
            return Death(Cause.KILLED, f"was ended from outside ({name})")
        cause = Cause.ILLEGAL if name == "SIGILL" else (_no_memory(lines) or Cause.CRASH)
        return Death(cause, f"died of {name}{words}{said}")


def _own(stream: IO[bytes]) -> int:
    fd = os.dup(stream.fileno())
    stream.close()
    return fd


def _thread(target: Callable[..., None], name: str, *arguments: object) -> threading.Thread:
    thread = threading.Thread(
        target=target, name=f"ingot-worker-{name}", args=arguments, daemon=True
    )
    thread.start()
    return thread


def _import_path() -> str:
    """Found by its place, since the caller may run from anywhere without having installed Ingot."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """The child starts with Ctrl-C blocked, until it has decided to ignore it."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _oom_kills() -> int | None:
    """Processes that Linux has killed for memory since it started; None where it does not tell."""
    try:
        with open("/proc/vmstat", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _no_memory(lines: list[str]) -> Cause | None:
    return Cause.MEMORY if any(_NO_MEMORY.search(line) for line in lines[-10:]) else None


def _last_words(lines: list[str]) -> str:
    """The last line that tells a reason, else the last one, as the end of a sentence."""
    telling = [line for line in lines if _LAST_WORDS.search(line)] or lines
    return f": {telling[-1].strip()[:_LINE_SHOWN]}" if telling else ""
