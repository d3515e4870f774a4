"""Which job to look at: those that run on this machine, and those of before."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from app.batch.watch.records import KnownJob, known_jobs
from app.here import at_home
from app.tui.screens.batch_panels import short
from app.tui.screens.dialogs import Panel
from app.tui.widgets.form import path_field
from app.tui.widgets.table import Table, TableColumn

_LOOKS = {"running": "running", "finished": "done", "killed": "failed", "stopped": "waiting"}


class JobTable(Table[KnownJob]):
    """The state, how far it is, and when something happened last."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "job-table--running",
        "job-table--done",
        "job-table--failed",
        "job-table--waiting",
        "job-table--quiet",
    }

    def __init__(self, clock: Callable[[], float]) -> None:
        columns: tuple[TableColumn[KnownJob], ...] = (
            TableColumn("state", self._state, 9),
            TableColumn("output", lambda job: end_of(short(job.output), self.room)),
            TableColumn("done", lambda job: _figure(job.done), 10, True),
            TableColumn("rows", lambda job: self._styled(_figure(job.rows)), 10, True),
            TableColumn("", self._share, 4, True),
            TableColumn("when", lambda job: self._styled(ago(clock() - job.at)), 10, True),
        )
        super().__init__(columns, key=lambda job: job.output, id="jobs-list")

    def _state(self, job: KnownJob) -> Text:
        return self._styled("yours" if job.own else job.state, _LOOKS.get(job.state, "quiet"))

    def _share(self, job: KnownJob) -> str:
        return f"{100 * job.done // job.rows}%" if job.rows and job.done is not None else ""

    def _styled(self, text: str, how: str = "quiet") -> Text:
        return Text(text, self.get_component_rich_style(f"job-table--{how}", partial=True))


class BatchJobsScreen(Panel[Path]):
    """Jobs that run now, those of before, and any other by the path of its output. Ends with the
    output of a job, None when it was left."""

    HELP = """
    Jobs of `ingot batch` on this machine, also those started in another terminal; `yours` were
    started in the app and run. Enter, or a second click, follows one. A job that was started
    elsewhere can be watched, and resumed once it has ended.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "again", "Look again", id="batch.jobs_again", priority=True),
    ]

    def __init__(
        self,
        jobs: Callable[[], list[KnownJob]] = known_jobs,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("Jobs")
        self._jobs, self._clock = jobs, clock
        self.found: list[KnownJob] = []

    def contents(self) -> ComposeResult:
        yield Static("looking ...", id="jobs-said", classes="hint", markup=False)
        yield JobTable(self._clock)
        yield path_field(
            "jobs-output", "Other", "the output of a job that is not listed", suffix=""
        )

    def on_mount(self) -> None:
        self.action_again()

    @work(exit_on_error=False, exclusive=True, group="jobs")
    async def action_again(self) -> None:
        self.found = await asyncio.to_thread(self._jobs)
        table, said = self.query_one(JobTable), self.query_one("#jobs-said", Static)
        table.styles.height = min(len(self.found) + 1, 16)
        table.show(self.found)
        said.display = not self.found
        said.update("No job is known here; type the path of an output.")
        (table if self.found else self.query_one("#jobs-output")).focus()

    @on(Table.Selected)
    def _picked(self) -> None:
        job = self.query_one(JobTable).record
        if job is not None:
            self.dismiss(job.output)

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(at_home(event.value.strip()))


def end_of(text: str, wide: int) -> str:
    """The end of a path tells more than its beginning."""
    return text if len(text) <= wide else "…" + text[1 - wide :]


def ago(seconds: float) -> str:
    """How long ago something was."""
    for span, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= span:
            return f"{seconds // span:.0f} {unit} ago"
    return "just now"


def _figure(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
