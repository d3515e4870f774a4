"""Runs commands in one process of their own and hands back what they said.

It reads JSON from stdin: command lines, each a list whose first word is ``ingot`` or ``quantize``.
The functions are those that pyproject.toml installs as commands, so that nothing here knows how the
code is laid out.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def run(line: list[str], entry: str) -> dict[str, Any]:
    """A command's exit code and all that it wrote."""
    module, _, function = entry.partition(":")
    said = [TextIOWrapper(BytesIO(), "utf-8", newline="\n", write_through=True) for _ in range(2)]
    kept = sys.argv, sys.stdout, sys.stderr
    sys.argv, (sys.stdout, sys.stderr) = line, said
    try:
        code = getattr(importlib.import_module(module), function)()
    finally:
        sys.argv, sys.stdout, sys.stderr = kept
    out, err = (stream.buffer.getvalue().decode() for stream in said)
    return {"line": line, "code": code, "out": out, "err": err}


if __name__ == "__main__":
    scripts = tomllib.loads(_PROJECT.read_text("utf-8"))["project"]["scripts"]
    done = [run(line, scripts[line[0]]) for line in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(done))
