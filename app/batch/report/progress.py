"""Progress listeners of a running job: a bar on a terminal, or a line every ten seconds; events as
JSON lines for programs (docs/batch.md lists them); notes in the journal."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Self

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from app import console
from app.batch.input.scan import InputScan
from app.batch.journal.journal import Journal
from app.batch.journal.lines import LEFT
from app.batch.report.eta import Left, left_json
from app.batch.report.figures import JobFigures
from runtimes.untrusted import JsonObject

_LINE_S, _SILENT_S, _EVENT_S = 10.0, 3.0, 1.0
_LEFT_S, _MOVED = 5.0, 0.1  # notes on the time left: how often at most, and after which change


class Progress:
    """Also a context manager around the time in which rows run."""

    def __init__(
        self,
        *,
        quiet: bool = True,
        bar: bool = False,
        emit: Callable[[str], None] | None = None,
    ) -> None:
        """``bar`` only if nothing else writes to the terminal; ``emit`` takes events as lines.
        One that is ``quiet`` shows notes, and nothing else."""
        self.listeners: list[Callable[[JobFigures], None]] = []
        self._quiet, self._emit = quiet, emit
        self._told = float("-inf")
        self._bar = _Bar() if bar and not quiet and console.messages().is_terminal else None
        if self._bar is not None:
            self.listeners.append(self._bar.show)
        elif not quiet:
            self.listeners.append(_Lines().update)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def doing(self, text: str) -> AbstractContextManager[object]:
        """Say what is being waited for, if it takes long."""
        return console.doing(text, quiet=self._quiet)

    def note(self, text: str) -> None:
        """Show one line that stays."""
        console.note(text, style="yellow")
        self.event("note", {"text": text})

    def begin(self, found: InputScan) -> None:
        """Tell what is known of the input before the model is loaded."""
        names = "rows input_rows cached failed invalid_rows".split()
        self.event("begin", {name: getattr(found, name) for name in names})

    def update(self, figures: JobFigures) -> None:
        """Show the present figures, by each listener when it is time."""
        for listener in self.listeners:
            listener(figures)
        now = time.monotonic()
        if self._emit is not None and now - self._told >= _EVENT_S:
            self._told = now
            self.event("progress", figures.progress_json())

    def event(self, name: str, values: JsonObject) -> None:
        """Write one event, in ASCII: a row's message may quote half a surrogate pair, and stdout
        may take less than UTF-8."""
        if self._emit is not None:
            self._emit(json.dumps({"event": name, **values}) + "\n")


class _Bar(RichProgress):
    """Three lines, so that they fit a terminal of 80 columns: the bar, the speeds, the memory."""

    def __init__(self) -> None:
        self._below = [Text("", style="dim", no_wrap=True, overflow="ellipsis") for _ in range(2)]
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[dim]{task.fields[cached]}"),
            TextColumn("[red]{task.fields[failed]}"),
            console=console.messages(),
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
        )
        self._rows = self.add_task("rows", total=None, left="", cached="", failed="")

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield from self._below

    def show(self, figures: JobFigures) -> None:
        self.update(
            self._rows,
            description="finishing" if figures.draining else "rows",
            total=figures.rows,
            completed=figures.done,
            left=figures.left_text,
            cached=f"{figures.cached:,} cached" if figures.cached else "",
            failed=f"{figures.failed:,} failed" if figures.failed else "",
        )
        speeds, occupancy = self._below
        speeds.plain, occupancy.plain = figures.speeds_text, figures.occupancy_text


class _Lines:
    def __init__(self) -> None:
        self._begun = self._shown = time.monotonic()

    def update(self, figures: JobFigures) -> None:
        now = time.monotonic()
        soon = figures.compiling and self._shown == self._begun
        if now - self._shown < (_SILENT_S if soon else _LINE_S):
            return
        self._shown = now
        console.note(
            f"{figures.done:,}/{figures.rows:,} rows ({figures.cached:,} cached), "
            f"{figures.failed:,} failed; {figures.speeds_text}; {figures.occupancy_text}; "
            + figures.left_text
        )


class LeftNotes:
    """Notes in a journal when the job will end, as soon as that is another moment than was noted,
    for those who follow the job from outside."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._noted: tuple[float, Left] | None = None

    def update(self, figures: JobFigures) -> None:
        """Note it if that is due."""
        left, now = figures.time_left, time.time()
        if left is None:
            return
        if self._noted is not None:
            at, noted = self._noted
            expected = noted.after(now - at)
            moved = abs(left.high_s - expected.high_s) + abs(left.low_s - expected.low_s)
            if now - at < _LEFT_S or moved <= _MOVED * max(left.high_s, 1.0):
                return
        self._noted = now, left
        self._journal.note(LEFT, left_json(left), sync=False)
