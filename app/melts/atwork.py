"""Which process builds into a folder, also one that another program, or this app before it was
killed, has started."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

_LOCKS = Path("/proc/locks")


def builder_of(out: Path) -> int | None:
    """The process that holds the lock of ``out``; None when there is none, or the system does not
    tell (it does on Linux). Trying the lock would be in the way of a run that begins just now."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            about = out.stat()
            device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
            for line in _LOCKS.read_text().splitlines():
                # Such as "3: FLOCK  ADVISORY  WRITE 4711 fe:00:2621446 0 EOF"; who waits has "->".
                words = line.split()
                if words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and words[5:6] == [device]:
                    return int(words[4])
    return None
