"""Worker processes of the tests' own process, without the third of a second that imports take: they
are forked of a process that has imported what they need.

A forked worker is a process as any other: pipes, signals and deaths are real. A child with another
environment, placement or path than the tests', as for a fault or a stop, is started anew. So are
all children of a command in a process of its own. Trials of the planner take short samples.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from runtimes.machine.processes import Child, child_environment

# Not those that limit or measure the memory of their process.
_MODULES = ("runtimes.planner.trial_child", "runtimes.worker.child")
# What an engine with either kind of file imports, also late: when it is asked for an answer.
_IMPORTED = (
    *("runtimes.engine.engine", "runtimes.worker.wire", "runtimes.machine.linechild"),
    *("runtimes.llamacpp.backend", "runtimes.llamacpp.encoder", "runtimes.llamacpp.runner"),
    *("runtimes.llamacpp.tokenizer", "runtimes.onnx.adapters", "runtimes.onnx.backend"),
    *("runtimes.onnx.device", "runtimes.onnx.runner", "runtimes.onnx.tokenizer"),
    *("runtimes.templates.sandbox", "runtimes.planner.plan"),
    *("jinja2.ext", "llama_cpp", "llguidance", "onnxruntime", "tokenizers"),
)
_SERVE = "import sys; from tests import forks; forks.serve(int(sys.argv[1]))"
# Variables that a child reads when it has begun: they may be other than the server's.
_READ_LATE = ("HF_", "INGOT_", "PYTEST_", "TERM", "COLUMNS", "NO_COLOR")
_MESSAGE = 2**20
_PR_SET_CHILD_SUBREAPER = 36


def _early(environment: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if not k.startswith(_READ_LATE)}


def _here() -> str | None:
    """The current folder; None where it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


class _Server:
    """Forks for one thread at a time; ends with the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = child_environment()
        self._early, self._cpus = _early(environment), os.sched_getaffinity(0)
        with theirs:
            self._process = Child(
                *("-c", _SERVE, theirs.fileno(), *_MODULES),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def forks(self, words: Any, environment: dict[str, str], cwd: Any) -> bool:
        """Whether a child of these ``words`` would be as one that is started."""
        return (
            words[:3] == [sys.executable, "-P", "-m"]
            and words[3] in _MODULES
            and cwd is None
            and _early(environment) == self._early
            and os.sched_getaffinity(0) == self._cpus
            and _here() is not None
        )

    def fork(self, words: Any, environment: dict[str, str], files: list[int], session: bool) -> int:
        """The number of the new process, a child of this one."""
        mask = sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        asked = {"words": words[3:], "environment": environment, "cwd": _here()}
        data = json.dumps({**asked, "session": session, "mask": mask}).encode()
        libc = ctypes.CDLL(None)
        with self._lock:
            # The server's child, of whom it is one, ends: this process takes it then.
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._way, [data], files)
                return int(self._way.recv(_MESSAGE))
            finally:
                libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        self._way.close()
        self._process.wait()


def serve(descriptor: int) -> None:
    """The server: one fork after the other, until the tests have ended."""
    for name in (*_IMPORTED, *_MODULES):
        with suppress(ImportError):  # the child finds out by itself
            importlib.import_module(name)
    trial: Any = sys.modules["runtimes.planner.trial_child"]
    trial._DECODE_S, trial._PREFILL_S = 0.02, 0.01
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the tests'
    with socket.socket(fileno=descriptor) as way:
        while True:
            data, files, _, _ = socket.recv_fds(way, _MESSAGE, 8)
            if not data:
                return
            source, target = os.pipe()
            between = os.fork()
            if not between:
                os.close(source)
                child = os.fork()
                if not child:
                    for unused in (target, way.detach()):
                        os.close(unused)
                    _be_child(files, **json.loads(data))
                os.write(target, str(child).encode())
                os._exit(0)
            os.close(target)  # so that reading ends where ``between`` died
            os.waitpid(between, 0)
            way.send(os.read(source, 32))
            for used in (source, *files):
                os.close(used)


def _be_child(
    files: list[int],
    words: list[str],
    environment: dict[str, str],
    cwd: str,
    *,
    session: bool,
    mask: list[int],
) -> None:
    try:
        if session:
            os.setsid()
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.argv[:] = words
        code = importlib.import_module(words[0]).main(*words[1:]) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def children() -> Iterator[None]:
    """Within it such children are forked: on Linux, and not where a device's library, which may not
    be shared so, is tested."""
    if sys.platform != "linux" or os.environ.get("INGOT_TEST_DEVICE"):
        yield
        return
    server, started = _Server(), Child._execute_child  # type: ignore[attr-defined]

    def begin(self: Child, args: Any, *more: Any) -> None:
        pass_fds, cwd, environment = more[3:6]
        pipes, session = more[9:15], more[20]
        inner = (pipes[0], pipes[3], pipes[5])
        if -1 in inner or not server.forks(args, environment, cwd):
            started(self, args, *more)
            return
        self.pid = server.fork(args, environment, [*inner, *pass_fds], session)
        self._child_created = True  # type: ignore[attr-defined]
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "_execute_child", begin, raising=False)
        yield
    server.close()
