"""The engine's process of a running command, in steps: it gets no further than a test lets it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import psutil


def worker_of(process: Any) -> psutil.Process | None:
    """The worker process of a running command."""
    try:
        for child in psutil.Process(process.pid).children():
            if "runtimes.worker.child" in child.cmdline():
                return child
    except psutil.Error:
        pass
    return None


def step(process: Any) -> None:
    """Let a command's worker run for a moment, if there is one by now; it is suspended then."""
    worker = worker_of(process)
    if worker is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.resume()
            time.sleep(0.02)
            worker.suspend()
