"""The file of `--report`: every figure of a run, with what it ran on."""

import json
import os
import platform
import socket
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.batch.report.summary import Summary
from app.batch.settings import JobSettings
from runtimes.engine.metrics import EngineStats
from runtimes.errors import OutOfMemoryError, RequestError


def report_of(
    summary: Summary, settings: JobSettings, stats: EngineStats | None, *, input: str, output: str
) -> dict[str, Any]:
    """``summary`` has the rows and rates, ``settings`` what decides the answers, ``engine`` the
    engine's own figures at the end (null when no row needed the model)."""
    return {
        "input": input,
        "output": output,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "summary": summary.as_json(),
        "settings": settings.as_json(),
        "engine": None if stats is None else _rounded(asdict(stats)),
        "machine": {
            "host": socket.gethostname(),
            "system": platform.platform(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
        },
        "command": sys.argv[1:],
    }


def check_report(path: Path, out: Path | None) -> None:
    """Raises RequestError where the report cannot be written, before any work is done for it."""
    if path.is_dir() or not path.name:
        raise RequestError(f"--report: {path} is a folder; name a file")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise RequestError(f"--report: {path} cannot be written: no such folder, or not yours")
    if out is not None and path.absolute() == out.absolute():
        raise RequestError("--report and OUT are the same file; name another")


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Put the report in place in one step. Raises RequestError or OutOfMemoryError."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        from app.batch.output.publish import NO_ROOM

        kind = OutOfMemoryError if error.errno in NO_ROOM else RequestError
        raise kind(f"{path} cannot be written: {error.strerror or error}") from error


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 6)
        if isinstance(value, float)
        else _rounded(value)
        if isinstance(value, dict)
        else value
        for name, value in values.items()
    }
