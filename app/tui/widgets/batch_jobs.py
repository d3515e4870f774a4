"""Jobs to look at: those that run now, those of before, and any other by the path of its output."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from app.batch.watch.records import KnownJob, known_jobs
from app.tui.widgets.form_fields import Field

_PATH = 33  # columns


class BatchJobsScreen(ModalScreen[Path | None]):
    """Ends with the output of a job, None when it was left."""

    HELP = """
    Jobs of `ingot batch` on this machine, also those started in another terminal. Enter follows
    one. A job that was started elsewhere can be watched, and resumed once it has ended.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="batch.jobs_back"),
        Binding("ctrl+r", "again", "Look again", id="batch.jobs_again", priority=True),
    ]
    DEFAULT_CSS = """
    BatchJobsScreen {
        & OptionList { height: auto; max-height: 12; border: none; padding: 0; }
        & OptionList:focus { border: none; }
        & > .box > #jobs-said { height: auto; }
    }
    """

    def __init__(
        self,
        jobs: Callable[[], list[KnownJob]] = known_jobs,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(classes="panel")
        self._jobs, self._clock = jobs, clock
        self.found: list[KnownJob] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Jobs"
            yield Static("looking ...", id="jobs-said", markup=False)
            yield OptionList(id="jobs-list", markup=False)
            yield Field("Output", "the OUT of another job", "jobs-output", "")
            yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.action_again()

    @work(exit_on_error=False, exclusive=True, group="jobs")
    async def action_again(self) -> None:
        self.found = await asyncio.to_thread(self._jobs)
        now = self._clock()
        found = self.query_one(OptionList)
        found.set_options([Option(_line(job, now)) for job in self.found])
        said = "" if self.found else "No job is known here; type the path of an output."
        self.query_one("#jobs-said", Static).update(said)
        if self.found:
            found.highlighted = 0
        else:
            self.query_one("#jobs-output").focus()

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.found[event.option_index].output)

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(Path(event.value.strip()).expanduser())


def _line(job: KnownJob, now: float) -> str:
    """One line; the end of a path tells more than its beginning."""
    output = str(job.output)
    output = output if len(output) <= _PATH else "…" + output[1 - _PATH :]
    rows = "" if job.rows is None else f"{job.rows:,} rows"
    state = "yours" if job.own else job.state
    return f"{state:<9} {output:<{_PATH}} {rows:>14} {_ago(now - job.at):>9}"


def _ago(seconds: float) -> str:
    for span, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= span:
            return f"{seconds // span:.0f} {unit} ago"
    return "just now"
