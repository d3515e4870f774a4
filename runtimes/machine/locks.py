"""A lock on a file or folder among processes; the system frees that of a process that dies."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

log = logging.getLogger(__name__)

_LOCKS = Path("/proc/locks")
_WRITER_S = 10.0  # a change of a small file takes milliseconds


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

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def one_writer(folder: Path, wait_s: float = _WRITER_S) -> Iterator[None]:
    """Make and lock ``folder`` while a file in it is read, changed and replaced, so that no
    writer, in this process or another one, takes back what another one has written.

    Raises TimeoutError when somebody holds it for ``wait_s``, and OSError when the folder cannot
    be made. Where the system has no such locks, as some network disks, there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limit, lock = time.monotonic() + wait_s, None
    while lock is None:
        try:
            lock = Lock(folder)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise TimeoutError(None, f"{another_run(folder)} holds {folder}") from None
            time.sleep(0.01)
        except OSError as error:
            log.debug("no lock of %s: %s", folder, error)
            break
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def holder_of(path: Path) -> int | None:
    """The process that holds the lock of ``path``; None when there is none, or the system does not
    tell (it does on Linux). Trying the lock would be in the way of a run that begins just now."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            about = path.stat()
            device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
            for line in _LOCKS.read_text().splitlines():
                # Such as "3: FLOCK  ADVISORY  WRITE 4711 fe:00:2621446 0 EOF"; who waits has "->".
                words = line.split()
                if words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and words[5:6] == [device]:
                    return int(words[4])
    return None


def another_run(path: Path) -> str:
    """Name the holder of the lock of ``path``, in words."""
    pid = holder_of(path)
    return "another run" if pid is None else f"another run (process {pid})"
