"""The live display of a job on a terminal."""

from contextlib import AbstractContextManager

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from app import console
from app.batch.report.progress import BaseProgress, Lines, Snapshot


def make_progress(*, quiet: bool, bar: bool) -> BaseProgress:
    """The view that fits where stderr goes; ``bar`` only if nothing else writes to the terminal."""
    if quiet:
        return BaseProgress()
    return Bar() if bar and console.messages().is_terminal else Lines()


class Bar(BaseProgress):
    """Three lines, so that they fit a terminal of 80 columns: the bar, the speeds, the memory."""

    def __init__(self) -> None:
        self._progress = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[dim]{task.fields[cached]}"),
            TextColumn("[red]{task.fields[failed]}"),
            console=console.messages(),
        )
        self._task = self._progress.add_task("rows", total=None, left="", cached="", failed="")
        self._speeds = Text("", style="dim", no_wrap=True, overflow="ellipsis")
        self._occupancy = Text("", style="dim", no_wrap=True, overflow="ellipsis")
        self._live = Live(
            Group(self._progress, self._speeds, self._occupancy),
            console=console.messages(),
            transient=True,
            redirect_stdout=False,
        )

    def __enter__(self) -> BaseProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def doing(self, text: str) -> AbstractContextManager[object]:
        """On the console."""
        return console.doing(text)

    def update(self, snapshot: Snapshot) -> None:
        """All of it anew."""
        self._progress.update(
            self._task,
            description="finishing" if snapshot.draining else "rows",
            total=snapshot.rows,
            completed=snapshot.done,
            left=snapshot.left_text,
            cached=f"{snapshot.cached:,} cached" if snapshot.cached else "",
            failed=f"{snapshot.failed:,} failed" if snapshot.failed else "",
        )
        self._speeds.plain = snapshot.speeds
        self._occupancy.plain = snapshot.occupancy
