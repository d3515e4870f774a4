"""One worker process: started, listened to, killed, and its end explained."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from subprocess import PIPE
from typing import IO, Any, NamedTuple

import psutil

from runtimes import own
from runtimes.errors import RequestError
from runtimes.machine.processes import Child
from runtimes.request import FinishReason
from runtimes.worker.recovery import Cause, Death, OomDetector, explain
from runtimes.worker.wire import (
    Call,
    Done,
    Load,
    PipeSender,
    Ready,
    Refused,
    Reply,
    Submit,
    receive,
    start_thread,
)

log = logging.getLogger(__name__)
_stderr_log = logging.getLogger(own("runtimes.worker.stderr"))

Outcome = Ready | Refused | Death  # of a load
Outcomes = queue.SimpleQueue[Outcome]

_LINES_KEPT = 50
_STDERR_S = 1.0  # for the last lines after the end; a grandchild may hold the pipe longer


@dataclass(frozen=True, slots=True)
class Placement:
    """Processors and environment of a worker process."""

    # The logical processors that all threads may use; none: all that this process may.
    cpus: tuple[int, ...] = ()
    # On top of this process's own, such as the GPUs to see.
    environment: Mapping[str, str] = field(default_factory=dict)


class WorkerProcess:
    """A child that loads a model.

    ``outcome`` gets a Ready or a Refused, and a Death when the process ends before the caller has
    taken it over. ``ended`` is set when the process is gone and ``died`` has returned.
    """

    def __init__(
        self,
        order: Load,
        place: Placement,
        received: Callable[[WorkerProcess, list[Any]], None],
        died: Callable[[WorkerProcess], None],
    ) -> None:
        """``received`` and ``died`` are called on a thread of the process, ``died`` once, after the
        last ``received``; ``death`` then says how."""
        self.outcome: Outcomes = queue.SimpleQueue()
        self.ended = threading.Event()
        self.death: Death | None = None
        self._received, self._died = received, died
        self._verdict: Death | None = None  # of whoever killed it here
        # Should it be killed, that tells whether memory was short: looks while there is work.
        self.oom = OomDetector()
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        popen: Child | None = None
        try:
            with _starting(place.cpus):
                popen = Child(
                    *("-m", "runtimes.worker.child"),
                    environment=place.environment,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=PIPE,
                )
            self._popen = popen
            self._connect(popen)
        except BaseException:  # Ctrl-C as soon as it is let in
            if popen is not None:
                popen.kill()
            raise
        self.pid = popen.pid
        log.debug("worker %d loads %s", self.pid, order.path)
        self.send(order)

    def _connect(self, popen: Child) -> None:
        # Detached, so that each end is closed once, by whoever uses it.
        self._sender = PipeSender(
            _own(popen.stdin), "ingot-worker-send", unsendable=self._refuse_unsendable
        )
        self.send = self._sender.put
        self._stderr = start_thread("ingot-worker-stderr", self._read_stderr, popen.stderr)
        start_thread("ingot-worker-receive", self._read, popen, _own(popen.stdout))

    def _refuse_unsendable(self, item: object, error: Exception) -> None:
        """Answer in the child's place what never reaches it."""
        from runtimes.engine.sequence import unstarted  # needs NumPy, which nothing else here does

        why = f"the request cannot be given to the worker process: {type(error).__name__}"
        match item:
            case Submit(number, request):
                done = Done(number, unstarted(request, FinishReason.ERROR, why))
                self._received(self, [done])
            case Call(number):
                self._received(self, [Reply(number, problem=RequestError(why))])
            case _:
                log.error("%s", why)

    def kill(self) -> None:
        """End it at once, also when it is stopped or hangs."""
        self._popen.kill()

    def give_up(self, reason: str) -> None:
        """End it because it makes no progress: ``reason`` says for how long or in what."""
        death = Death(Cause.HANG, f"was ended: {reason}")
        if is_stopped(self.pid):
            # That is nobody's fault here, and no other settings would help.
            death = Death(Cause.KILLED, f"{death.text}; it had been stopped from outside")
        self._verdict = self._verdict or death
        self.kill()

    def _read(self, popen: Child, fd: int) -> None:
        try:
            for items in receive(fd):
                self._received(self, items)
        except Exception:
            log.exception("what the worker process sent cannot be understood")
            popen.kill()
        code = popen.wait()
        self._sender.close(0)
        self._stderr.join(_STDERR_S)
        self.death = self._verdict or explain(code, list(self._lines), self.oom.cause())
        log.debug("worker %d %s", popen.pid, self.death.text)
        self._died(self)
        self.ended.set()

    def _read_stderr(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                if line := raw.decode("utf-8", errors="replace").rstrip():
                    self._lines.append(line)
                    _stderr_log.debug("%s", line)


def _own(stream: IO[bytes] | None) -> int:
    assert stream is not None
    fd = os.dup(stream.fileno())
    stream.close()
    return fd


@contextmanager
def _starting(cpus: tuple[int, ...]) -> Iterator[None]:
    """A child that is started here has Ctrl-C blocked, until it has decided to ignore it.

    It runs on these processors from its first instruction on, so that libraries which count them
    while they are loaded count the right ones. Linux keeps the affinity by thread, so that no other
    thread of this process is moved. Where there is none, nothing happens.
    """
    with ExitStack() as undo:
        if sys.platform != "win32":
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            undo.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        if sys.platform == "linux" and cpus:
            undo.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, cpus)
        yield


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
        self.work = self._work.set  # there is some now
        self._stopped = False
        start_thread("ingot-watchdog", self._run)

    def moved(self) -> None:
        """Something has moved. Called from one thread at a time."""
        self._moves += 1

    def stop(self) -> None:
        """End it."""
        self._stopped = True
        self.work()

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
    """Resources used by the process and its children: a self-test of the native library runs in
    one."""

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

    def wait(self, outcome: Outcomes) -> Outcome | None:
        """Wait for the load's outcome; None when a tick brought none. Look for ``problem`` then."""
        began = time.monotonic()
        with suppress(queue.Empty):
            return outcome.get(timeout=self._tick_s)
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
