"""Native tools that are compared with."""

import os
from pathlib import Path

from runtimes.errors import IngotError

HOW_TO_BUILD = "docs/benchmarks.md says how to build it"


class ToolMissingError(IngotError):
    """A benchmark needs a program that was not named or is not there."""

    exit_code = 2


def require_tool(path: Path | None, option: str, name: str) -> Path:
    """``path`` if it is a program. Raises ToolMissingError that says where to get it."""
    if path is None:
        raise ToolMissingError(f"name the program {name} with {option}; {HOW_TO_BUILD}")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ToolMissingError(f"{option}: {path} is not a program; {HOW_TO_BUILD}")
    return path


def tail(text: str, lines: int = 8) -> str:
    """The last lines of a tool's output, for an error."""
    return "\n".join(text.strip().splitlines()[-lines:]) or "it said nothing"
