"""Every child process that runs Python is started here, and its end is put into words.

Python puts the current folder in front of its path for `-m` and `-c`: a `json.py` that lies there
would run in place of the real one. A child gets ``-P`` instead, and finds Ingot where this process
found it. Standard library only: the native build uses it before anything is installed.
"""

import contextlib
import ctypes
import logging
import os
import re
import shlex
import signal
import site
import subprocess
import sys
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from runtimes import PACKAGES, own

log = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[__name__.count(".")]

_FRAME = re.compile(r'^  File "(.+)", line (\d+)(?:, in (.+))?$', re.MULTILINE)
_ERROR = re.compile(r"^\S.*", re.MULTILINE)
_OF_IMPORTS = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError")
_NOT_BEGUN = re.compile(rf"^(?:{re.escape(sys.executable)}: |Fatal Python error: ).*", re.MULTILINE)


def python(*arguments: object) -> list[str]:
    """The command line of this Python with ``arguments``, the current folder not on its path; `-m`
    takes a module of Ingot by its name in the source."""
    words = [*map(str, arguments)]
    if words[:1] == ["-m"] and words[1].split(".")[0] in PACKAGES:
        words[1] = own(words[1])
    return [sys.executable, "-P", *words]


def advised(module: str) -> str:
    """The line for a shell that runs one of Ingot's modules; the current folder runs nothing."""
    found = shlex.quote(sys.executable) if own("") else "python"  # a checkout has one of its own
    return f"{found} -P -m {own(module)}"


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's own with ``extra``, in which a child finds the packages that run here.

    PYTHONPATH begins with the folder of Ingot, which may not be installed. The rest of it means
    the same in another folder; an empty part, which would be the current folder, is left out.
    """
    merged = {**os.environ, **(extra or {})}
    given = merged.get("PYTHONPATH", "").split(os.pathsep)
    paths = [os.path.abspath(path) for path in given if path]
    if str(_ROOT) not in map(os.path.realpath, site.getsitepackages()):
        paths.insert(0, str(_ROOT))
    return {**merged, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _tie(pid: int, end: int) -> None:
    """Linux ends a child process when its parent is gone, whatever it is doing then.

    The child also sees the end of the parent's messages, but only while it runs Python: a stopped
    one sees nothing, and would keep its memory for ever. So it holds the reading end of a pipe to
    which nobody writes, for which the system is asked to send SIGKILL when the last writer is gone
    (F_SETOWN, F_SETSIG and O_ASYNC of fcntl(2): they belong to the open pipe, so the child has
    nothing to do). prctl's PR_SET_PDEATHSIG will not do: it goes by the thread that started the
    child, which may end.
    """
    if sys.platform == "linux":
        import fcntl

        try:
            fcntl.fcntl(end, fcntl.F_SETOWN, pid)
            fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError as error:  # a sandbox may not know all of these
            log.debug("a stopped child process would outlive this one: %s", error)


def _close(ends: Iterable[int]) -> None:  # the child is dead, or dies of this
    for end in ends:
        os.close(end)


class Child(subprocess.Popen[bytes]):
    """This Python with ``arguments``; ``more`` is for Popen.

    On Linux it ends with this process, whatever it is doing then, unless it ``outlives`` it. It is
    also ended when nothing here knows of it any more.
    """

    def __init__(
        self,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        outlives: bool = False,
        pass_fds: tuple[int, ...] = (),
        **more: Any,
    ) -> None:
        ends = os.pipe() if sys.platform == "linux" and not outlives else ()
        close = weakref.finalize(self, _close, ends)
        try:
            super().__init__(
                python(*arguments),
                env=child_environment(environment),
                pass_fds=(*pass_fds, *ends[:1]),
                **more,
            )
        except BaseException:  # whose traceback may hold this for long
            close()
            raise
        if ends:
            _tie(self.pid, ends[0])

    def kill_session(self) -> None:
        """End it, and on POSIX what it has started too: it leads a session of its own."""
        if sys.platform == "win32":
            self.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def run(
    *arguments: object, environment: Mapping[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """This Python with ``arguments`` to its end; ``more`` is for subprocess.run."""
    return subprocess.run(
        python(*arguments),
        env=child_environment(environment),
        text=True,
        errors="replace",
        check=False,
        **more,
    )


def birth(pid: int) -> float | None:
    """When a process was started, in seconds since 1970; None when there is none, or only its
    parent has not noticed that it has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, ValueError, OverflowError):  # no number that a process can have
        return None


def is_alive(pid: object, born: object) -> bool:
    """Whether the process that had this number and start still runs. Both may be of a file that
    anybody wrote: what is no number is no process.

    The start is compared because numbers are used again; not exactly, because it is counted from
    the machine's start, whose time shifts a little when the clock is set.
    """
    if type(pid) is not int or not isinstance(born, (int, float)) or abs(born) > 2**63:
        return False
    now = birth(pid)
    return now is not None and born - 1.0 < now < born + 1.0


def signal_name(code: int) -> str | None:
    """The signal that ended a process with this exit code; None when none did."""
    if code >= 0:
        return None
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def ending(code: int) -> str:
    """How a process ended, by its exit code."""
    return signal_name(code) or f"exit code {code}"


def import_failure(said: str) -> str | None:
    """Why a child that has ended by itself could not import a module, by what it ``said`` on
    stderr, and what to do: words that continue its name. None when it ended of anything else."""
    if found := _NOT_BEGUN.search(said):
        return import_advice(found[0])
    frames = [*_FRAME.finditer(said)]
    error = _ERROR.search(said, frames[-1].end()) if frames else None
    if error is None:
        return None
    frame = frames[-1]
    if frame[3] != "<module>" and not error[0].startswith(_OF_IMPORTS):
        return None
    return import_advice(f"{error[0]} ({frame[1]}, line {frame[2]})")


def import_advice(reason: str) -> str:
    """Advise on an import that failed for ``reason``: words that continue a name."""
    hidden = os.environ.get("PYTHONPATH")
    return (
        f"could not import a module: {reason}; install its package again"
        + f", or take what hides it off PYTHONPATH ({hidden})" * bool(hidden)
    )


# Memory that this process has freed, and the C library keeps for it.


def give_back() -> None:
    """Give the system what is free of it; glibc would keep whatever lies below something that is
    still in use. Other libraries do so by themselves."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
