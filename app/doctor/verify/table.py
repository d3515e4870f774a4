"""The lines as they come: a table in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from app import console
from app.doctor.verify.lines import CheckLine, Subject
from runtimes.untrusted import visible

_COLOURS = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


class Shown(Protocol):
    """What is shown while checks run."""

    def begins(self, check: str, subject: Subject) -> None:
        """A check runs from now on."""

    def ends(self, line: CheckLine) -> None:
        """It is done."""


class _Plain:
    def begins(self, check: str, subject: Subject) -> None:
        """Nothing: lines come as they are done."""

    def ends(self, line: CheckLine) -> None:
        words = [line.found.verdict, line.check, *_about(line.subject), line.found.said]
        console.emit("  ".join(filter(None, words)) + "\n")


class _Silent(_Plain):
    def ends(self, line: CheckLine) -> None:
        """Nothing: the report itself is what is wanted on stdout."""


def _about(subject: Subject) -> tuple[str, str]:
    return " ".join(filter(None, (subject.runtime, subject.device))), subject.file


@contextmanager
def shown(*, silent: bool) -> Iterator[Shown]:
    """Where the lines go."""
    if silent or not sys.stdout.isatty():
        yield _Silent() if silent else _Plain()
        return
    from rich.console import Group
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    from quantize.terminal import Console

    table = Table(box=None, pad_edge=False)
    for name in ("", "check", "on", "file"):
        table.add_column(name, no_wrap=True)
    table.add_column("found", overflow="fold")

    with Live(console=Console(), refresh_per_second=4, vertical_overflow="visible") as live:

        class Growing:
            def begins(self, check: str, subject: Subject) -> None:
                now = " ".join(filter(None, (check, *_about(subject))))
                live.update(Group(table, Spinner("dots", Text(visible(now)))))

            def ends(self, line: CheckLine) -> None:
                colour, found = _COLOURS[line.found.verdict], line.found
                cells = (line.check, *_about(line.subject), found.said)
                table.add_row(Text(found.verdict, style=colour), *map(Text, map(visible, cells)))
                live.update(table)

        yield Growing()
