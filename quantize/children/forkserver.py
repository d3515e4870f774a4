"""Children forked of a process that has imported torch and transformers already.

Importing them takes six seconds of a processor, and one build has five children that need them.
Only on Linux: elsewhere libraries do not survive a fork.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from quantize.children.child import work
from runtimes.machine.processes import Child

assert sys.platform == "linux"  # mypy reads on for Linux only

_MODULES = ("torch", "transformers.modeling_utils")
_MESSAGE = 1 << 20  # bytes at most: an environment
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SERVE = "import sys; from quantize.children.forkserver import serve; serve(int(sys.argv[1]))"


class ForkServer:
    """The parent's side: the server, which is started when it is first needed, and its child, to
    be used as a `Child` is. One child at a time, from one thread: it has been waited for before the
    next is forked.
    """

    def __init__(self) -> None:
        self._process: Child | None = None
        self._way: socket.socket
        self._pid = 0

    def fork(self, folder: Path, environment: Mapping[str, str]) -> bool:
        """Begin a child that works in ``folder`` (see `child.work`); False where importing torch
        ends a process."""
        asked = {"folder": str(folder), "cwd": os.getcwd(), "environment": dict(environment)}
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """End the server, and its child with it."""
        if self._process is not None:
            self._process.kill_session()
            self._process.wait()
            self._way.close()
            self._process = None

    def _start(self, environment: Mapping[str, str]) -> None:
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


def _be_child(server: int, folder: str, cwd: str, environment: Mapping[str, str]) -> NoReturn:
    """In a group of its own, and ended with the server, whose only thread has forked it."""
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == server:
            log = os.open(Path(folder, "log"), os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(cwd)
            work(Path(folder))
    finally:
        os._exit(1)
