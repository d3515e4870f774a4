"""The child's side of `process.run_child`: call one function, hand its result back.

``python -m quantize.child PARENT MODULE FUNCTION RESULT`` reads the arguments as a JSON object from
stdin and writes ``{"value": ...}`` or ``{"error": ..., "kind": ...}`` to the file RESULT.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from runtimes.errors import IngotError


def _die_with(parent: int) -> None:
    """A run that is killed must not leave a child behind that goes on writing."""

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
    parent, module, function, result = sys.argv[1:5]
    _die_with(int(parent))
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
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's shutdown: native libraries tear down badly, and it is slow.
    os._exit(0 if "value" in outcome else 1)


if __name__ == "__main__":
    main()
