"""Processes that stop themselves (SIGSTOP) at a place in their work, on a machine of any speed.

Python runs a module ``sitecustomize`` on its path before anything else, in children too. The
functions write one and return the environment that has it found.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

_AFTER_ROWS = """
import os, signal, sys, time

def counted(descriptor, data):
    global left
    done = write(descriptor, data)
    if b'"ok":true' in bytes(data):
        time.sleep(float(os.environ["TEST_PAUSE"]))
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGSTOP)
    return done

if {"batch", "compare"} & set(sys.orig_argv):
    write, left = os.write, int(os.environ["TEST_ROWS"])
    os.write = counted
"""

_BEFORE_LOADING = """
if "runtimes.worker.child" in sys.orig_argv:
    signal.raise_signal(signal.SIGSTOP)
"""

_BEFORE_QUANTIZING = """
import os, signal, sys

call = os.path.join(sys.orig_argv[-1], "call")  # of quantize.children
if os.path.isfile(call) and os.path.exists(os.environ["TEST_BUILT"]):
    with open(call, "rb") as file:
        data = file.read()
        if b"quantize.gguf.quantize" in data and b"gguf_sizes" not in data:
            signal.raise_signal(signal.SIGSTOP)
"""


def after_rows(
    folder: Path, rows: int, pause_s: float = 0.0, *, loading: bool = False
) -> dict[str, str]:
    """`ingot batch` or `compare` stops when a journal was written to so often with answers, each of
    which takes ``pause_s`` longer. With ``loading``, its worker stops too, before it loads the
    model."""
    found = _found(folder, _AFTER_ROWS + _BEFORE_LOADING * loading)
    return {**found, "TEST_ROWS": str(rows), "TEST_PAUSE": str(pause_s)}


def before_quantizing(folder: Path, built: Path) -> dict[str, str]:
    """llama.cpp's quantizer stops before it begins, once ``built`` is there."""
    return {**_found(folder, _BEFORE_QUANTIZING), "TEST_BUILT": str(built)}


def wait_stopped(process: subprocess.Popen[Any] | psutil.Process) -> None:
    """Until a process has stopped itself; fails if it ends instead."""
    while True:
        status = psutil.Process(process.pid).status()
        if status == psutil.STATUS_STOPPED:
            return
        assert status != psutil.STATUS_ZOMBIE, "it ended"
        time.sleep(0.01)


def waiting(pid: int) -> list[psutil.Process]:
    """What a process has started and what has stopped itself."""
    try:
        found = psutil.Process(pid).children(recursive=True)
        return [one for one in found if one.status() == psutil.STATUS_STOPPED]
    except psutil.NoSuchProcess:  # one of them has just ended
        return []


def _found(folder: Path, code: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(folder)}
