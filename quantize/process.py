"""Run a function in a child process, so that a native crash is an error and not our death.

It also keeps torch and transformers out of this process: their memory goes when the child goes.
A child that calls `quantize.child.report_progress` is followed while it works.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from quantize.child import DISK_FULL
from quantize.errors import DiskFullError, ToolError
from runtimes.errors import OutOfMemoryError

logger = logging.getLogger(__name__)

_CHILD = (sys.executable, "-m", "quantize.child")
_TAIL = 8  # lines of the child's output that an error shows
_GLANCE = 0.25  # seconds between looks at whether a silent child lives

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
    heard, told = os.pipe()
    with log.open("wb") as output, os.fdopen(heard, "rb", buffering=0) as reports:
        try:
            process = subprocess.Popen(
                [*_CHILD, str(os.getpid()), str(told), module, name, str(result)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(environment),
                pass_fds=(told,),
                start_new_session=True,  # Ctrl-C reaches us alone; we end the child
            )
        finally:
            os.close(told)
        try:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(dict(arguments)).encode())
                process.stdin.close()
            except BrokenPipeError:
                pass  # it died at once; wait() says how
            _follow(process, reports.fileno(), progress)
            code = process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its session: what it started as well
            process.wait()
            raise
    text = log.read_text(encoding="utf-8", errors="replace")
    answer = json.loads(result.read_text(encoding="utf-8") or "{}")
    logger.debug("%s:\n%s\n%s", what, text, answer.get("traceback", ""))
    result.unlink()
    log.unlink()
    if "value" in answer:
        return answer["value"]
    raise _failure(what, code, answer, text)


def _follow(process: subprocess.Popen[bytes], reports: int, progress: Progress | None) -> None:
    """Pass on what the child reports until it has closed its end or died."""
    rest = b""
    while True:
        if not select.select([reports], [], [], _GLANCE)[0]:
            if process.poll() is not None:  # something that it left behind holds the other end
                return
            continue
        piece = os.read(reports, 65536)
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        if progress is not None and lines:
            progress.advance(*json.loads(lines[-1]))  # the newest says it all


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
    if code == -signal.SIGKILL:
        return OutOfMemoryError(
            f"{what} was killed, most likely because memory ran out; close other programs, or use a"
            " machine with more memory"
        )
    died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return ToolError(f"{what} died ({died}; -v shows all)\n{tail}".rstrip())


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    environment = {**os.environ, **_ENVIRONMENT, **(extra or {})}
    # Work from a checkout that is not installed, too.
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment
