"""The live view of a job on stderr: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from app import console
from app.figures import duration, rate

_LINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The job at one moment. ``done`` counts every row that needs nothing more, ``computed`` those
    that this run finished; rates are tokens per second."""

    rows: int
    done: int
    computed: int
    failed: int
    running: int
    prefill_now: float
    decode_now: float
    prefill: float
    decode: float
    draining: bool

    def remaining_seconds(self, elapsed: float) -> float | None:
        """Time to the end at the pace so far."""
        if not self.computed:
            return None
        return elapsed / self.computed * (self.rows - self.done)


class Progress(Protocol):
    """Shows snapshots until it is left."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def update(self, snapshot: Snapshot) -> None:
        """Take in the present state; shown when it is time."""

    def note(self, text: str) -> None:
        """Show one line that stays."""


def make_progress(*, quiet: bool, bar: bool) -> Progress:
    """The view that fits where stderr goes; ``bar`` only if nothing else writes to the terminal."""
    if quiet:
        return _Silent()
    return _Bar() if bar and console.messages().is_terminal else _Lines()


def speeds(snapshot: Snapshot) -> str:
    """Prefill and decode, now and overall."""
    return (
        f"prefill {rate(snapshot.prefill_now)} (all {rate(snapshot.prefill)}), "
        f"decode {rate(snapshot.decode_now)} (all {rate(snapshot.decode)})"
    )


class _Silent:
    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, snapshot: Snapshot) -> None:
        return

    def note(self, text: str) -> None:
        console.note(text, style="yellow")


class _Lines(_Silent):
    def __init__(self) -> None:
        self._began = self._shown = time.monotonic()

    def update(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now - self._shown < _LINE_SECONDS:
            return
        self._shown = now
        left = snapshot.remaining_seconds(now - self._began)
        console.note(
            f"{snapshot.done:,}/{snapshot.rows:,} rows, {snapshot.failed:,} failed, "
            f"{snapshot.running} in work; {speeds(snapshot)}"
            + (f"; {duration(left)} left" if left is not None else "")
        )


class _Bar(_Silent):
    """Two lines, so that they fit a terminal of 80 columns: the bar, and the speeds."""

    def __init__(self) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.text import Text

        self._began = time.monotonic()
        self._progress = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[red]{task.fields[failed]}"),
            console=console.messages(),
        )
        self._task = self._progress.add_task("rows", total=None, left="", failed="")
        self._speeds = Text("", style="dim", no_wrap=True, overflow="ellipsis")
        self._live = Live(
            Group(self._progress, self._speeds),
            console=console.messages(),
            transient=True,
            redirect_stdout=False,
        )

    def __enter__(self) -> _Bar:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, snapshot: Snapshot) -> None:
        left = snapshot.remaining_seconds(time.monotonic() - self._began)
        self._progress.update(
            self._task,
            description="finishing" if snapshot.draining else "rows",
            total=snapshot.rows,
            completed=snapshot.done,
            left="" if left is None else f"{duration(left)} left",
            failed=f"{snapshot.failed:,} failed" if snapshot.failed else "",
        )
        self._speeds.plain = speeds(snapshot)
