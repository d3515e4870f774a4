"""What a build says on stderr while it runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Reporter(Protocol):
    """Where a build reports its stages."""

    def stage(self, text: str) -> contextlib.AbstractContextManager[None]:
        """A stage that lasts as long as the with block."""

    def note(self, text: str) -> None:
        """Something that the user should know."""


class ConsoleReporter:
    """Stages with their seconds on stderr. Rich honours NO_COLOR and dumb terminals."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)

    @contextlib.contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Show ``text`` while the block runs, and how long it took when it is done."""
        begin = time.monotonic()
        if self._console.is_terminal:
            columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
            with Progress(*columns, console=self._console, transient=True) as live:
                live.add_task(escape(text), total=None)
                yield
        else:
            self._line(f"{text} ...")
            yield
        self._line(f"{text}: {time.monotonic() - begin:.1f} s")

    def note(self, text: str) -> None:
        """Print one indented line."""
        self._line(f"  {text}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class SilentReporter:
    """Reports nothing: for callers that show progress in their own way."""

    def stage(self, text: str) -> contextlib.AbstractContextManager[None]:
        """Nothing."""
        return contextlib.nullcontext()

    def note(self, text: str) -> None:
        """Nothing."""
