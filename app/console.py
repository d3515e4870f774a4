"""Output: answers and data go to stdout, messages about them to stderr.

Control characters in a text are shown, not sent: always on stderr, and on a stdout that is a
terminal. A pipe or a file gets answers and data as they are.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from runtimes.output import is_terminal, json_seen, json_text
from runtimes.untrusted import visible

if TYPE_CHECKING:
    from quantize.terminal import Console

_SILENT_S, _AGAIN_S = 3.0, 30.0
COMPILING = "compiling what the answer must be"


@cache
def messages() -> Console:
    """The console on stderr. It follows NO_COLOR, and is plain where stderr is no terminal."""
    from quantize.terminal import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def note(text: str, style: str | None = None) -> None:
    """One line on stderr, taken literally: text in square brackets is not markup."""
    # Rich would leave some of them out.
    messages().print(visible(text, lines=True), style=style, markup=False, emoji=False)


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
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="replace")


def emit(text: str) -> None:
    """Write to stdout at once; what its encoding lacks, such as half a surrogate pair of a file's
    name, is escaped. Raises BrokenPipeError when nobody reads it any more."""
    said = visible(text, lines=True) if is_terminal(sys.stdout) else text
    try:
        sys.stdout.write(said)
    except UnicodeEncodeError as error:
        sys.stdout.write(said.encode(error.encoding, "backslashreplace").decode(error.encoding))
    sys.stdout.flush()


def shows_thoughts() -> bool:
    """Whether thoughts may be written beside an answer: only where somebody reads along."""
    return is_terminal(sys.stderr)


def emit_thought(text: str) -> None:
    """Write a piece of a thought to stderr at once, dim where the terminal can."""
    messages().print(visible(text, lines=True), style="dim", markup=False, emoji=False, end="")


def emit_json(data: Any, indent: int | None = None) -> None:
    """Write JSON to stdout. Raises BrokenPipeError as ``emit`` does."""
    emit(json_text(data, indent) + "\n")


def emit_bytes(data: bytes) -> None:
    """Write finished UTF-8, lines of JSON, to stdout at once. Raises BrokenPipeError as ``emit``
    does."""
    if is_terminal(sys.stdout):
        emit(json_seen(data.decode(errors="replace")))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
