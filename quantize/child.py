"""The child's side of `process.run_child`: call one function, hand its result back.

``python -m quantize.child PARENT REPORTS MODULE FUNCTION RESULT`` reads the arguments as a JSON
object from stdin and writes ``{"value": ...}`` or ``{"error": ..., "kind": ...}`` to the file
RESULT. REPORTS is the file descriptor of the pipe that carries progress, a JSON list a line.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from runtimes.errors import IngotError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
DISK_FULL = 73  # the exit code of a child that cannot even write down what went wrong
_EVERY = 0.1  # seconds between two reports


@dataclass(slots=True)
class _Reports:
    """The way to the parent, and when it was last used."""

    pipe: int = -1
    last: float = 0.0


_reports = _Reports()


def report_progress(done: float, total: float, unit: str) -> None:
    """Tell the parent that ``done`` of ``total`` ``unit`` are done; does nothing without a parent.

    May be called as often as is convenient: ten times a second are sent, and the end.
    """
    now = time.monotonic()
    if _reports.pipe < 0 or (done < total and now - _reports.last < _EVERY):
        return
    _reports.last = now
    with contextlib.suppress(OSError):  # the parent is gone: the watch will end us
        os.write(_reports.pipe, json.dumps([float(done), float(total), unit]).encode() + b"\n")


def _die_with(parent: int) -> None:
    """A run that is killed must not leave a child behind that goes on writing.

    Linux ends the child at once. Elsewhere a thread looks, which native code that keeps Python's
    lock can hold up.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def _describe(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "it gave up"
    if isinstance(error, IngotError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def main() -> int:
    """Run the function named on the command line."""
    parent, pipe, module, function, result = sys.argv[1:6]
    _die_with(int(parent))
    # `python -m` runs this file as __main__; those who report import it by its name.
    imported = importlib.import_module("quantize.child")
    imported._reports.pipe = int(pipe)
    os.set_inheritable(int(pipe), False)
    # What libraries log belongs to the output that the parent shows when this fails.
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    arguments = json.load(sys.stdin)
    try:
        outcome = {"value": getattr(importlib.import_module(module), function)(**arguments)}
    except (Exception, SystemExit) as error:
        # Not into the output: its last lines are the tool's own words, which say more.
        outcome = {
            "error": _describe(error),
            "kind": type(error).__name__,
            "traceback": traceback.format_exc(),
        }
    try:
        Path(result).write_text(json.dumps(outcome), encoding="utf-8")
    except OSError as error:
        os._exit(DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's shutdown: native libraries tear down badly, and it is slow.
    os._exit(0 if "value" in outcome else 1)


if __name__ == "__main__":
    main()
