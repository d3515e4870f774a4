"""The terminal the app is drawn on, and what else would write to it.

Textual draws on stderr. Here it is stdout, so that `2> file` is harmless, and what native libraries
and log handlers write to stderr goes to a file instead of across the screen.
"""

from __future__ import annotations

import contextlib
import os
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, cast

from runtimes.untrusted import visible

if TYPE_CHECKING:
    from textual.driver import Driver

_MOST_LOG = 1_000_000  # bytes of old log that are kept


class Screen:
    """A file that swallows everything once the terminal has gone: the thread that draws must
    outlive it, or the app would wait for it. ``sieve`` changes what is written."""

    def __init__(self, file: IO[str], sieve: Callable[[str], str]) -> None:
        self._file = file
        self._sieve = sieve

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(self._sieve(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


def in_browser() -> bool:
    """Whether textual-serve started this process to draw on one of its pages."""
    return "web_driver" in os.environ.get("TEXTUAL_DRIVER", "")


def driver() -> type[Driver] | None:
    """The driver that draws on stdout; None where Textual's own does (Windows, a browser)."""
    _tell_alt_apart()
    found: type[Driver] | None = None
    if sys.platform != "win32" and not in_browser():
        from textual.drivers.linux_driver import LinuxDriver

        from app.tui import theme

        class StdoutDriver(LinuxDriver):
            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(*arguments, **named)
                plain = theme.no_color()
                sieve: Callable[[str], str] = theme.without_colours if plain else str
                self._file = cast(Any, Screen(cast(IO[str], sys.__stdout__), sieve))

        found = StdoutDriver
    return found


def _tell_alt_apart() -> None:
    """Read what terminals send for alt and a key, escape and the key, as that key. Textual 8.2.8
    takes some for another key; of the others it loses what follows within a tenth of a second, or
    types them as text."""
    from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

    keys = {"\r": "enter", "\x7f": "backspace", "\x08": "backspace"}
    keys |= {key: key for key in string.ascii_lowercase + string.digits}
    for sent, key in keys.items():
        cast(Any, ANSI_SEQUENCES_KEYS)[f"\x1b{sent}"] = (SimpleNamespace(value=f"alt+{key}"),)


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Let everything that is written to stderr, also by child processes, go to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _MOST_LOG:
        path.replace(path.with_suffix(".old.log"))
    sys.stderr.flush()
    kept = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(log, 2)
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(log)


_MOST_NOTICE = 200  # characters
# How terminals are told to show a desktop notification: by what TERM begins with, or TERM_PROGRAM.
_NOTICES = {
    "\x1b]99;;{}\x1b\\": ("xterm-kitty",),
    "\x1b]9;{}\x1b\\": ("xterm-ghostty", "wezterm", "iTerm.app", "WezTerm", "ghostty", "WarpTerm"),
    "\x1b]777;notify;Ingot;{}\x1b\\": ("foot", "rxvt-unicode", "contour"),
}


def notice(text: str, *, desktop: bool) -> str:
    """Characters that call a user: a notification that says ``text`` where ``desktop`` is wanted
    and the terminal is known to have it, else a bell.

    Within tmux and screen it is always a bell: they know which window rang, and the variables that
    name the terminal may be those of another one.
    """
    names = (os.environ.get("TERM", ""), os.environ.get("TERM_PROGRAM", ""))
    if desktop and not {"TMUX", "STY"} & os.environ.keys():
        shown = visible(text)[:_MOST_NOTICE]
        for form, known in _NOTICES.items():
            if any(name.startswith(known) for name in names):
                return form.format(shown)
    return "\a"


def problem() -> str | None:
    """Why the app cannot run here; None when stdin and stdout are a terminal that can draw."""
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        try:
            there = stream is not None and stream.isatty()
        except ValueError:  # closed
            there = False
        if not there:
            return f"{name} is not a terminal"
    if os.environ.get("TERM", "") == "dumb":
        return "TERM is dumb"
    return None
