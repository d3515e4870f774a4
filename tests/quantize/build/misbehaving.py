"""What children do in test_process.py."""

from __future__ import annotations

import ctypes
import errno
import os
import pathlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from quantize.children import report_progress, report_step


def give_up() -> NoReturn:
    for number in range(20):
        sys.stdout.write(f"line {number}\n")
    sys.exit(1)


def fill_the_disk() -> None:
    """So that the answer cannot be written."""

    def refuse(*_arguments: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "full")

    pathlib.Path.write_bytes = refuse  # type: ignore[assignment]


def report(seen: Path) -> None:
    """Ends only when the first report has been heard."""
    report_progress(1, 4, "rows")
    while not seen.exists():
        time.sleep(0.01)
    for number in range(1000):
        report_progress(2 + number / 1000, 4, "rows")
    report_progress(4, 4, "rows")
    report_step("tidying up")


def hold_the_lock(mark: Path) -> None:
    """No thread of Python's could end this: PyDLL calls keep the lock."""
    mark.write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)


def start_another(mark: Path) -> None:
    inner = subprocess.Popen(["sleep", "600"])
    mark.write_text(str(inner.pid))
    inner.wait()


def kill_the_server(tests: int) -> None:
    """Once it has told this process's number and waits: before, another child is begun in place of
    this one, by the tests themselves."""
    server = os.getppid()
    assert server != tests
    while "State:\tS" not in Path(f"/proc/{server}/status").read_text():
        time.sleep(0.01)
    os.kill(server, signal.SIGKILL)
    time.sleep(600)


def imported() -> tuple[bool, str, bool]:
    """Whether torch is there already, a variable, and whether the process leads its group."""
    if there := "torch" in sys.modules:
        import torch

        torch.ones(200, 200) @ torch.ones(200, 200)  # threads must work after a fork
    return there, os.environ.get("INGOT_TOLD", ""), os.getpgrp() == os.getpid()
