"""Linux ends a child process when its parent is gone, whatever it is doing then.

The child also sees the end of the parent's messages, but only while it runs Python: a stopped one
sees nothing, and would keep its memory for ever. So it holds the reading end of a pipe to which
nobody writes, for which the system is asked to send SIGKILL when the last writer is gone (F_SETOWN,
F_SETSIG and O_ASYNC of fcntl(2): they belong to the open pipe, so the child has nothing to do).
prctl's PR_SET_PDEATHSIG will not do: it goes by the thread that started the child, which may end.
"""

import contextlib
import logging
import os
import signal
import sys

log = logging.getLogger(__name__)


class Lifeline:
    """The parent's side. ``pass_fds`` is for Popen, and empty where there is no such thing."""

    def __init__(self) -> None:
        self._ends = list(os.pipe()) if sys.platform == "linux" else []
        self.pass_fds = tuple(self._ends[:1])

    def started(self, pid: int) -> None:
        """The child has its end."""
        if sys.platform == "linux":
            import fcntl

            end = self._ends.pop(0)
            try:
                fcntl.fcntl(end, fcntl.F_SETOWN, pid)
                fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
            except OSError as error:  # a sandbox may not know all of these
                log.debug("a stopped child process would outlive this one: %s", error)
            os.close(end)

    def close(self) -> None:
        """Let the child go: it is dead, or dies of this. Idempotent."""
        with contextlib.suppress(IndexError):
            while True:
                os.close(self._ends.pop())
