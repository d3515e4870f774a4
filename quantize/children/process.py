"""Run a function in a child process, so that a native crash is an error and not our death.

It also keeps torch and transformers out of this process. A child that calls
`quantize.children.child.report_progress` is followed while it works.
"""

import contextlib
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Protocol, TypeVar

from quantize.children.child import DISK_FULL
from quantize.errors import DiskFullError, ToolError
from quantize.progress.console import SILENT, Reporter
from runtimes.errors import OutOfMemoryError
from runtimes.machine.hardware import memory_now
from runtimes.machine.processes import Child, child_environment, ending, import_failure

if sys.platform == "linux":
    from quantize.children.forkserver import ForkServer

    _forks = ForkServer()

logger = logging.getLogger(__name__)

# Notices that a worker process makes no progress, whether it hangs, is stopped or lost a lock.
#
# Once it has loaded, by what it says. One that loads is judged by the system's account of it and
# of its own children, not by a message that it would have to send: a native load can hold
# Python's lock for minutes and be well, and one that is deadlocked in native code would let a
# thread send such messages for ever.
#
# Time in which this process did not run either (Ctrl-Z, a machine that slept) does not count.


T = TypeVar("T")

_TAIL = 8  # lines of the child's output that an error shows
_GLANCE = 0.1  # seconds between looks at what a child reports
_SHORT = 2_000_000_000  # bytes of free memory; the server holds an eighth of that
_BEGIN = "import sys; from quantize.children.child import main; main(int(sys.argv[1]), sys.argv[2])"

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
# Threads that wait by spinning stand in each other's way when the processor is shared.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}


class _Process(Protocol):
    """A `Child`, or one that was forked."""

    def wait(self, timeout: float | None = None) -> int: ...

    def kill_session(self) -> None: ...


def run_child(
    call: Callable[[], T],
    what: str,
    work: Path,
    progress: Reporter = SILENT,
    *,
    environment: Mapping[str, str] | None = None,
    torch: bool = False,
) -> T:
    """``call``, a `functools.partial` of a module's function, in a child; what it returns.

    ``what`` names the step in errors; the child has a folder in ``work``, and ``progress`` hears
    what it reports. With ``torch`` the child has imported torch and transformers. Raises ToolError
    with the child's last lines, DiskFullError or OutOfMemoryError. When this process is interrupted
    the child is killed, with what it has started.
    """
    with tempfile.TemporaryDirectory(prefix="child-", dir=work, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        (folder / "call").write_bytes(pickle.dumps(call))
        code = _run(folder, {**_ENVIRONMENT, **(environment or {})}, progress, torch=torch)
        text = (folder / "log").read_text(encoding="utf-8", errors="replace")
        try:
            answer = pickle.loads((folder / "result").read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            answer = {}
    said = f"{text}\n{answer.get('traceback', '')}"
    logger.debug("%s:", what, extra={"output": said})
    if "value" in answer:
        value: T = answer["value"]
        return value
    raise _failure(what, code, answer, text)


def _run(folder: Path, environment: Mapping[str, str], progress: Reporter, *, torch: bool) -> int:
    """Let a child work in ``folder`` to its end; its exit code."""
    if torch:
        environment = {**environment, **PATIENT}
        progress.step("loading torch and transformers")
    with (
        (folder / "log").open("wb") as output,
        (folder / "reports").open("w+b", buffering=0) as reports,
    ):
        if sys.platform == "linux" and torch:
            if _forks.fork(folder, child_environment(environment)):
                return _follow(_forks, reports, progress)
        elif sys.platform == "linux" and memory_now()[1] < _SHORT:
            _forks.close()  # until it is needed again
        child = Child(
            *("-c", _BEGIN, os.getpid(), folder),
            environment=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone; we end the child
        )
        return _follow(child, reports, progress)


def _follow(process: _Process, reports: IO[bytes], progress: Reporter) -> int:
    """Pass on what the child reports until it has ended; its exit code."""
    rest, code = b"", None
    try:
        while code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(_GLANCE)
            *lines, rest = (rest + reports.read()).split(b"\n")
            if lines:
                newest = json.loads(lines[-1])  # it says it all
                if isinstance(newest, str):
                    progress.step(newest)
                else:
                    progress.advance(*newest)
    except BaseException:
        process.kill_session()
        process.wait()
        raise
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
