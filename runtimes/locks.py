"""A lock on a file or folder among processes; the system frees that of a process that dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self


class Lock:
    """Held from the start until ``close``, or as a context manager."""

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        """Raises BlockingIOError while another process holds it, unless told to ``wait``."""
        if sys.platform == "win32":
            from filelock import FileLock, Timeout

            # Beside it: no folder can be locked there, and a locked file cannot be read.
            self._held = FileLock(path.with_name(f"{path.name}.lock"))
            try:
                self._held.acquire(timeout=-1 if wait else 0)
            except Timeout as error:
                raise BlockingIOError(f"another process holds {path}") from error
        else:
            import fcntl

            self._held = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BaseException:
                os.close(self._held)
                raise

    def close(self) -> None:
        """Let others have it."""
        if sys.platform == "win32":
            self._held.release()
        else:
            os.close(self._held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
