"""Which process is writing an answer, so that one which died can be told from one at work."""

from __future__ import annotations

import os
from functools import cache


@cache
def _born(pid: int) -> float:
    import psutil

    return float(psutil.Process(pid).create_time())


def this_process() -> tuple[int, float]:
    """The number of this process and when it started, in seconds since 1970."""
    return os.getpid(), _born(os.getpid())


def is_alive(pid: int, born: float) -> bool:
    """Whether the process that had this number and start still runs.

    The start is compared because numbers are used again; not exactly, because it is counted from
    the machine's start, whose time shifts a little when the clock is set.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - born) < 1.0
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False
