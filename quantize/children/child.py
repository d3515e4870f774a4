"""The child's side of `process.run_child`: call one function, hand its result back.

The parent and the child share a folder: ``call`` is what to do, as a pickle, ``result`` what came
of it, ``reports`` the progress in lines of JSON, ``log`` all that was said.
"""

import contextlib
import errno
import json
import logging
import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from runtimes.errors import IngotError
from runtimes.output import LogFormatter

DISK_FULL = 73  # the exit code of a child that cannot even write down what went wrong
_EVERY = 0.1  # seconds between two reports


_reports = -1  # the file that the parent reads
_last = 0.0  # when a progress was sent


def report_progress(done: float, total: float, unit: str) -> None:
    """Tell the parent that ``done`` of ``total`` ``unit`` are done; does nothing without a parent.

    May be called as often as is convenient: ten times a second are sent, and the end.
    """
    global _last
    now = time.monotonic()
    if done >= total or now - _last >= _EVERY:
        _last = now
        _send([float(done), float(total), unit])


def report_step(text: str) -> None:
    """Tell the parent what is done now, where nothing can be counted."""
    _send(text)


def _send(report: object) -> None:
    if _reports >= 0:
        with contextlib.suppress(OSError):  # a full disk
            os.write(_reports, json.dumps(report).encode() + b"\n")


def main(parent: int, folder: str) -> NoReturn:
    """A child that was started as a program of its own.

    Linux ends it with its parent (runtimes.machine.processes). Elsewhere a thread looks, which
    native code that keeps Python's lock can hold up.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
    work(Path(folder))


def work(folder: Path) -> NoReturn:
    """Do what ``folder`` says, and end this process."""
    global _reports
    _reports = os.open(folder / "reports", os.O_WRONLY | os.O_APPEND)
    # What libraries log belongs to the output that the parent shows when this fails.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    code = 1
    try:
        outcome = {"value": pickle.loads((folder / "call").read_bytes())()}
        code = 0
    except (Exception, SystemExit) as error:
        # Not into the output: its last lines are the tool's own words, which say more.
        outcome = {
            "error": _describe(error),
            "kind": type(error).__name__,
            "traceback": traceback.format_exc(),
        }
    try:
        (folder / "result").write_bytes(pickle.dumps(outcome))
    except OSError as error:
        code = DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's shutdown: native libraries tear down badly, and it is slow.
    os._exit(code)


def _describe(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "it gave up"
    if isinstance(error, IngotError):
        return str(error)
    return f"{type(error).__name__}: {error}"
