"""How llama.cpp's threads wait for each other: awake while they have the cores, else asleep.

They meet hundreds of times a token. GNU OpenMP lets the early ones spin for up to 3 ms (libgomp's
``config/linux/wait.h``), which is the fastest on free cores. Beside another busy process the one
that is waited for is then kept off its core by those that spin, and decoding falls to a hundredth
of its speed.

libgomp hardly spins (100 times) while it manages more threads than there are cores, and asks itself
that at every wait. So a team of idle threads that is made and ended at run time switches it.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import threading
import time
from functools import cache
from typing import Any

from runtimes.machine.cpu import allowed_cpus, cpu_use, others_share

logger = logging.getLogger(__name__)

_LOOK_S = 0.25
# In cores. What a chat window or a job's progress takes is no reason to sleep.
_CROWDED, _FREE = 0.5, 0.25
_LOOKS_UNTIL_FREE = 4
_REST_S = 0.02  # without a step: others may have worked meanwhile, as engines that take turns do


def excess(threads: int, others: float, cores: int) -> float:
    """By how many cores ``threads`` that never sleep and ``others`` want more than there are."""
    return min(threads, cores) + others - cores


class OmpWaitPolicy:
    """Watches the machine while steps run, each within ``with``, on a thread of its own.

    ``threads`` are those of an engine. Does nothing for one thread, without GNU OpenMP, or where
    the environment says how to wait (GOMP_SPINCOUNT, OMP_WAIT_POLICY).
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._work = threading.Event()
        self._closed = threading.Event()
        self._running = False
        self._ended = -math.inf  # the last step
        self._rested = False  # since the last look
        self._asleep: threading.Event | None = None  # while waiting threads sleep: ends it
        chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
        if threads > 1 and not chosen and _openmp() is not None:
            threading.Thread(target=self._watch, name="ingot-omp-wait", daemon=True).start()

    def __enter__(self) -> None:
        """A step begins."""
        self._running = True
        if time.perf_counter() - self._ended > _REST_S:
            self._rested = True
        if not self._work.is_set():
            self._work.set()

    def __exit__(self, *_: object) -> None:
        """A step has ended."""
        self._running = False
        self._ended = time.perf_counter()

    def close(self) -> None:
        """End the watch. Idempotent."""
        self._closed.set()
        self._work.set()

    def _watch(self) -> None:
        free, usage = 0, cpu_use()
        while not self._closed.wait(_LOOK_S):
            if not self._running:  # this engine rests: who has the cores now does not matter
                self._work.clear()
                if not self._running:  # no step has begun just before it was cleared
                    self._work.wait()
                self._rested = True
            if self._rested:
                self._rested = False
                usage = cpu_use()
                continue
            before, usage = usage, cpu_use()
            others = others_share([(before, usage)]) * _cores()
            over = excess(self._threads, others, _cores())
            free = free + 1 if over < _FREE else 0
            if over > _CROWDED and self._asleep is None:
                logger.debug("other processes are busy: waiting threads sleep")
                self._asleep = _idle_team()
            elif free >= _LOOKS_UNTIL_FREE and self._asleep is not None:
                logger.debug("the cores are free again: waiting threads spin")
                self._asleep.set()
                self._asleep = None
        if self._asleep is not None:
            self._asleep.set()


def _idle_team() -> threading.Event:
    """More OpenMP threads than cores, asleep until the event is set."""
    over = threading.Event()

    def hold() -> None:
        nothing = ctypes.cast(ctypes.CDLL(None).getppid, ctypes.c_void_p)
        _openmp().GOMP_parallel(nothing, None, _cores() + 1, 0)
        over.wait()  # libgomp frees a team with the thread that made it

    threading.Thread(target=hold, name="ingot-idle-team", daemon=True).start()
    return over


def _cores() -> int:
    """As libgomp counts them: hardware threads that this process may run on."""
    return len(allowed_cpus())


@cache
def _openmp() -> Any:
    """GNU's OpenMP library, the one that llama.cpp is linked to; None where there is none."""
    try:
        library = ctypes.CDLL("libgomp.so.1")
        pointer, count = ctypes.c_void_p, ctypes.c_uint
        library.GOMP_parallel.argtypes = [pointer, pointer, count, count]
        library.GOMP_parallel.restype = None
    except (OSError, AttributeError):
        return None
    return library
