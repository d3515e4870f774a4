"""The child's side of `process.run_child`: call one function, hand its result back.

``python -m quantize.build.child PARENT REPORTS MODULE FUNCTION RESULT`` reads the arguments as a
JSON object from stdin and writes ``{"value": ...}`` or ``{"error": ..., "kind": ...}`` to the file
RESULT. REPORTS is the file that takes progress, in lines of JSON.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from runtimes.errors import IngotError

DISK_FULL = 73  # the exit code of a child that cannot even write down what went wrong
_EVERY = 0.1  # seconds between two reports


@dataclass(slots=True)
class _Reports:
    """The way to the parent, and when it was last used."""

    file: int = -1
    last: float = 0.0


_reports = _Reports()


def report_progress(done: float, total: float, unit: str) -> None:
    """Tell the parent that ``done`` of ``total`` ``unit`` are done; does nothing without a parent.

    May be called as often as is convenient: ten times a second are sent, and the end.
    """
    now = time.monotonic()
    if _reports.file < 0 or (done < total and now - _reports.last < _EVERY):
        return
    _reports.last = now
    with contextlib.suppress(OSError):  # a full disk
        os.write(_reports.file, json.dumps([float(done), float(total), unit]).encode() + b"\n")


def report_step(text: str) -> None:
    """Tell the parent what is done now, where nothing can be counted."""
    if _reports.file >= 0:
        with contextlib.suppress(OSError):
            os.write(_reports.file, json.dumps(text).encode() + b"\n")


def _die_with(parent: int) -> None:
    """A run that is killed must not leave a child behind that goes on writing.

    Linux ends the child at once (runtimes.machine.lifeline). Elsewhere a thread looks, which native
    code that keeps Python's lock can hold up.
    """

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
    parent, reports, module, function, result = sys.argv[1:6]
    _die_with(int(parent))
    # `python -m` runs this file as __main__; those who report import it by its name.
    imported = importlib.import_module("quantize.build.child")
    imported._reports.file = os.open(reports, os.O_WRONLY | os.O_APPEND)
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
