"""The child's side of `process.run_child`: call one function, hand its result back.

``python -m quantize.child MODULE FUNCTION RESULT`` reads the arguments as a JSON object from stdin
and writes ``{"value": ...}`` or ``{"error": ..., "kind": ...}`` to the file RESULT.
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


def _die_with_parent() -> None:
    """A run that is killed must not leave a child behind that goes on writing."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def main() -> int:
    """Run the function named on the command line."""
    module, function, result = sys.argv[1:4]
    _die_with_parent()
    # What libraries log belongs to the output that the parent shows when this fails.
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    arguments = json.load(sys.stdin)
    try:
        outcome = {"value": getattr(importlib.import_module(module), function)(**arguments)}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        outcome = {"error": str(error) or type(error).__name__, "kind": type(error).__name__}
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's shutdown: native libraries tear down badly, and it is slow.
    os._exit(0 if "value" in outcome else 1)


if __name__ == "__main__":
    main()
