"""Functions that run in a child process, so that a native crash is an error and not our death, and
torch and transformers stay out of this process.

The parent (`run_child`) and the child (`work`) share a folder: ``call`` is what to do, as a pickle,
``result`` what came of it, ``reports`` the progress in lines of JSON, ``log`` all that was said. On
Linux, children that need torch are forked of a process that has imported it already: importing it
takes six seconds of a processor, and one build has five such children. Elsewhere libraries do not
survive a fork.
"""

import atexit
import contextlib
import ctypes
import errno
import importlib
import json
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn, TypeVar

from quantize.errors import DiskFullError, ToolError
from quantize.progress import SILENT, Reporter
from runtimes.errors import IngotError, OutOfMemoryError
from runtimes.machine.hardware import memory_now
from runtimes.machine.processes import Child, child_environment, ending, import_failure
from runtimes.output import LogFormatter

logger = logging.getLogger(__name__)

T = TypeVar("T")
Environment = Mapping[str, str]

_TAIL = 8  # lines of the child's output that an error shows
_GLANCE = 0.1  # seconds between looks at what a child reports
_SHORT = 2_000_000_000  # bytes of free memory; the server holds an eighth of that
_BEGIN = f"import sys; from {__name__} import main; main(int(sys.argv[1]), sys.argv[2])"

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


_MODULES = ("torch", "transformers.modeling_utils")
_MESSAGE = 1 << 20  # bytes at most: an environment
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SERVE = f"import sys; from {__name__} import serve; serve(int(sys.argv[1]))"


_DISK_FULL = 73  # the exit code of a child that cannot even write down what went wrong
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


def counted(items: Sequence[T], unit: str) -> Iterator[T]:
    """Each of ``items``; the parent hears how many are done."""
    for done, item in enumerate(items):
        report_progress(done, len(items), unit)
        yield item
    report_progress(len(items), len(items), unit)


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
        kind = type(error).__name__
        reason = f"{error}" if isinstance(error, IngotError) else f"{kind}: {error}"
        # Not into the output: its last lines are the tool's own words, which say more.
        outcome = {
            "error": "it gave up" if isinstance(error, SystemExit) else reason,
            "kind": kind,
            "traceback": traceback.format_exc(),
        }
    try:
        (folder / "result").write_bytes(pickle.dumps(outcome))
    except OSError as error:
        code = _DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's shutdown: native libraries tear down badly, and it is slow.
    os._exit(code)


if sys.platform == "linux":

    class ForkServer:
        """Parent's side of the server, which is started when it is first needed, and its child,
        to be used as a `Child` is. One child at a time, from one thread: it has been waited for
        before the next is forked.
        """

        def __init__(self) -> None:
            self._process: Child | None = None
            self._way: socket.socket
            self._pid = 0

        def fork(self, folder: Path, environment: Environment) -> bool:
            """Begin a child that works in ``folder`` (see `work`); False where importing torch ends
            a process."""
            asked = {"folder": str(folder), "environment": dict(environment)}
            with contextlib.suppress(FileNotFoundError):  # deleted
                asked["cwd"] = os.getcwd()
            try:
                if self._process is None:
                    self._start(environment)
                self._way.send(json.dumps(asked).encode())
                self._pid = int(self._way.recv(_MESSAGE) or 0)
            except OSError:
                self._pid = 0
            except BaseException:  # Ctrl-C: nobody would hear of the child
                self.close()
                raise
            if not self._pid:
                self.close()
            return self._pid > 0

        def wait(self, timeout: float | None = None) -> int:
            """The child's exit code. Raises subprocess.TimeoutExpired."""
            if not select.select([self._way], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked child", timeout or 0)
            code = self._way.recv(_MESSAGE)
            return int(code) if code else -signal.SIGKILL  # it died with the server

        def kill_session(self) -> None:
            """End the child and what it has started."""
            if self._pid > 0:  # else this process's own group would be meant
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._pid, signal.SIGKILL)

        def close(self) -> None:
            """End the server, and its child with it."""
            if self._process is not None:
                self._process.kill_session()
                self._process.wait()
                self._way.close()
                self._process = None

        def _start(self, environment: Environment) -> None:
            self._way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            atexit.register(self.close)
            with theirs:
                self._process = Child(
                    *("-c", _SERVE, theirs.fileno()),
                    environment=environment,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def serve(descriptor: int) -> None:
        """The server: one child after the other, until the parent is gone."""
        for name in _MODULES:
            with contextlib.suppress(Exception):  # each child finds out why by itself
                importlib.import_module(name)
        server = os.getpid()
        with socket.socket(fileno=descriptor) as way:
            while asked := way.recv(_MESSAGE):
                pid = os.fork()
                if not pid:
                    way.close()
                    _be_child(server, **json.loads(asked))
                with contextlib.suppress(OSError):  # it has done so itself
                    os.setpgid(pid, pid)
                way.send(str(pid).encode())
                _, status = os.waitpid(pid, 0)
                way.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _be_child(
        server: int, folder: str, environment: Environment, cwd: str | None = None
    ) -> NoReturn:
        """In a group of its own, and ended with the server, whose only thread has forked it."""
        try:
            os.setpgid(0, 0)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == server:
                if cwd is not None:
                    os.chdir(cwd)  # the folder may be a relative path
                log = os.open(Path(folder, "log"), os.O_WRONLY | os.O_APPEND)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.environ.clear()
                os.environ.update(environment)
                work(Path(folder))
        finally:
            os._exit(1)

    _forks = ForkServer()

else:
    ForkServer = Child


def run_child(
    call: Callable[[], T],
    what: str,
    work: Path,
    progress: Reporter = SILENT,
    *,
    environment: Environment | None = None,
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


def _run(folder: Path, environment: Environment, progress: Reporter, *, torch: bool) -> int:
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


def _follow(process: Child | ForkServer, reports: IO[bytes], progress: Reporter) -> int:
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
    if full or (reason is None and code == _DISK_FULL):
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
