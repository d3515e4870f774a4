"""A program in a terminal that nobody looks at: what it writes is read and thrown away, and keys
are pressed."""

import os
import random
import re
import select
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from runtimes.errors import IngotError
from runtimes.machine.processes import Child

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LAST = 4000  # bytes of output that are kept
_LIMIT_S = 900.0
_SIZE = (40, 120)  # rows and columns


@dataclass(frozen=True, slots=True)
class Ran:
    """``keys`` are the monotonic times at which one was pressed; ``last`` is the end of the output
    without escape sequences."""

    code: int
    keys: list[float]
    last: str


def run_in_terminal(*module: object, keys_per_s: float = 0.0, ready: Path | None = None) -> Ran:
    """Run ``python -m module ...`` until it ends, pressing letters at about ``keys_per_s`` while
    there is a file ``ready``. The program is killed when it has not ended after 15 minutes.

    Raises IngotError on Windows.
    """
    terminal, its_end = _open()
    child = Child(
        *("-m", *module),
        environment={"TERM": "xterm-256color", "COLORTERM": "truecolor"},
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
    )
    os.close(its_end)
    draw = random.Random(0)
    pressed: list[float] = []
    last = b""
    limit, due = time.monotonic() + _LIMIT_S, 0.0
    pause = 0.002 if keys_per_s else 0.1
    try:
        while time.monotonic() < limit:
            if select.select([terminal], [], [], pause)[0]:
                try:
                    data = os.read(terminal, 1 << 16)
                except OSError:  # its end is closed
                    break
                if not data:
                    break
                last = (last + data)[-_LAST:]
            if keys_per_s and ready is not None and time.monotonic() >= due and ready.exists():
                key = _LETTERS[len(pressed) % len(_LETTERS)]
                pressed.append(time.monotonic())
                os.write(terminal, key.encode())
                due = time.monotonic() + draw.uniform(0.5, 1.5) / keys_per_s
    finally:
        if time.monotonic() >= limit:
            child.kill()
        os.close(terminal)
        child.wait()
    return Ran(child.returncode, pressed, _ESCAPES.sub("", last.decode(errors="replace")))


def _open() -> tuple[int, int]:
    """A terminal and the end that a program has of it. Raises IngotError on Windows."""
    if sys.platform != "win32":
        import fcntl
        import pty
        import termios

        ends = pty.openpty()
        fcntl.ioctl(ends[0], termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE, 0, 0))
        return ends
    raise IngotError("this measurement needs a terminal of its own, which Windows does not have")
