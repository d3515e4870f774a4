"""Where text goes: answers and data to stdout, everything about them to stderr."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_SILENT_S, _AGAIN_S = 3.0, 30.0
COMPILING = "compiling what the answer must be"


@cache
def messages() -> Console:
    """The console on stderr. It follows NO_COLOR, and is plain where stderr is no terminal."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def note(text: str, style: str | None = None) -> None:
    """One line on stderr, taken literally: text in square brackets is not markup."""
    messages().print(text, style=style, markup=False, emoji=False)


@contextlib.contextmanager
def doing(text: str | Callable[[], str], *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """Say on stderr what is being waited for if it takes longer than a few seconds, and again
    now and then; what it yields ends that early. A ``text`` that changes is asked for then."""
    over = threading.Event()

    def tell() -> None:
        begun, pause = time.monotonic(), _SILENT_S
        while not over.wait(pause):
            now = text if isinstance(text, str) else text()
            note(f"{now} ... ({time.monotonic() - begun:.0f} s)")
            pause = _AGAIN_S

    if not quiet:
        threading.Thread(target=tell, name="ingot-doing", daemon=True).start()
    try:
        yield over.set
    finally:
        over.set()


def prepare_stdout() -> None:
    """Make stdout take any text: a terminal that lacks a character shows a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def emit(text: str) -> None:
    """Write to stdout at once. Raises BrokenPipeError when nobody reads it any more."""
    sys.stdout.write(text)
    sys.stdout.flush()


def emit_json(data: Any, indent: int | None = None) -> None:
    """Write JSON to stdout. Raises BrokenPipeError as ``emit`` does."""
    emit(json.dumps(data, indent=indent, ensure_ascii=False) + "\n")


def emit_bytes(data: bytes) -> None:
    """Write finished UTF-8 to stdout at once. Raises BrokenPipeError as ``emit`` does."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
