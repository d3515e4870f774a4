"""Run a function in a child process, so that a native crash is an error and not our death.

It also keeps torch and transformers out of this process: their memory goes when the child goes.
A child that calls `quantize.build.child.report_progress` is followed while it works.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from quantize.build.child import DISK_FULL
from quantize.errors import DiskFullError, ToolError
from runtimes.errors import OutOfMemoryError
from runtimes.machine.processes import Child, ending, import_failure

logger = logging.getLogger(__name__)

_TAIL = 8  # lines of the child's output that an error shows
_GLANCE = 0.1  # seconds between looks at what a child reports

# No child may reach the network: what it needs is in the folder. onnxruntime and onnxruntime-genai
# report usage unless told not to.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # On machines with a GPU too, these steps are done on the processor.
    "CUDA_VISIBLE_DEVICES": "",
}


class Progress(Protocol):
    """Who is told how far a child has come."""

    def advance(self, done: float, total: float, unit: str) -> None:
        """``done`` of ``total`` ``unit`` of the present stage."""

    def step(self, text: str) -> None:
        """What the present stage does now."""


def run_child(
    function: str,
    arguments: Mapping[str, Any],
    *,
    what: str,
    work: Path,
    environment: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Any:
    """Call ``module:function(**arguments)`` in a child; arguments and result must fit into JSON.

    ``what`` names the step in errors; ``progress`` hears what the child reports. Raises ToolError
    with the child's last lines, DiskFullError or OutOfMemoryError. When this process is interrupted
    the child is killed, with what it has started.
    """
    module, name = function.split(":")
    handle, result_name = tempfile.mkstemp(prefix=f"{name}-", suffix=".result", dir=work)
    os.close(handle)
    result = Path(result_name)
    log = result.with_suffix(".log")
    told = result.with_suffix(".reports")
    with log.open("wb") as output, told.open("w+b", buffering=0) as reports:
        process = Child(
            *("-m", "quantize.build.child", os.getpid(), told, module, name, result),
            environment={**_ENVIRONMENT, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone; we end the child
        )
        try:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(dict(arguments)).encode())
                process.stdin.close()
            except BrokenPipeError:
                pass  # it died at once; wait() says how
            code = _follow(process, reports, progress)
        except BaseException:
            process.kill_session()
            process.wait()
            raise
    text = log.read_text(encoding="utf-8", errors="replace")
    answer = json.loads(result.read_text(encoding="utf-8") or "{}")
    logger.debug("%s:\n%s\n%s", what, text, answer.get("traceback", ""))
    result.unlink()
    log.unlink()
    told.unlink()
    if "value" in answer:
        return answer["value"]
    raise _failure(what, code, answer, text)


def _follow(process: Child, reports: IO[bytes], progress: Progress | None) -> int:
    """Pass on what the child reports until it has ended; its exit code."""
    rest, code = b"", None
    while code is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_GLANCE)
        *lines, rest = (rest + reports.read()).split(b"\n")
        if progress is not None and lines:
            newest = json.loads(lines[-1])  # it says it all
            if isinstance(newest, str):
                progress.step(newest)
            else:
                progress.advance(*newest)
    return code


def last_lines(text: str) -> str:
    """The end of a child's output, without progress bars."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
    return "\n".join(f"  {line}" for line in [line for line in lines if line][-_TAIL:])


def _failure(what: str, code: int, answer: Mapping[str, str], text: str) -> Exception:
    reason, kind = answer.get("error"), answer.get("kind")
    tail = last_lines(text)
    said = f"{reason}\n{tail}"
    full = "No space left on device" in said or "Disk quota exceeded" in said
    if full or (reason is None and code == DISK_FULL):
        return DiskFullError(
            f"{what}: the disk is full; make room and run it again: what is finished is kept"
        )
    if kind in ("MemoryError", "OutOfMemoryError") or "DefaultCPUAllocator: can't allocate" in said:
        return OutOfMemoryError(f"{what}: not enough memory ({reason})")
    if reason is not None:
        return ToolError(f"{what} failed: {reason} (-v shows all)\n{tail}".rstrip())
    if ending(code) == "SIGKILL":
        return OutOfMemoryError(
            f"{what} was killed, most likely because memory ran out; close other programs, or use a"
            " machine with more memory"
        )
    if code > 0 and (failure := import_failure(text)):
        return ToolError(f"{what} failed: Python {failure}")
    return ToolError(f"{what} died ({ending(code)}; -v shows all)\n{tail}".rstrip())
