"""Notices that a worker process makes no progress, whether it hangs, is stopped or lost a lock."""

import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls ``expired`` when there is work and nothing has moved for ``limit_s`` seconds.

    ``look`` is called about once a second while there is work, and says whether there still is: it
    sleeps while there is none. Time in which this process did not run either (Ctrl-Z, a
    machine that slept) does not count.
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
