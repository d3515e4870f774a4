"""Batch jobs: choose a file, look at it, start, watch every row, pause, go on, open answers."""

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import ContentSwitcher, Footer, Static

from app.batch.watch.job import Job, attach
from app.batch.watch.view import JobView, Phase
from app.tui.app import services_of
from app.tui.keys import told
from app.tui.screens.batch_new import NewJobScreen, short
from app.tui.screens.dialogs import AskScreen, ConfirmScreen
from app.tui.widgets.batch_chart import BatchChart
from app.tui.widgets.batch_form import BatchForm
from app.tui.widgets.batch_jobs import BatchJobsScreen
from app.tui.widgets.batch_leave import BatchLeaveScreen
from app.tui.widgets.batch_row import BatchRowScreen
from app.tui.widgets.batch_table import HEADER, BatchTable
from app.tui.widgets.batch_totals import totals_lines
from runtimes.errors import IngotError

log = logging.getLogger(__name__)

_TICK_S = 0.25
_TALL = 32
_LIVE, _ALL, _FAILED = "live", "all", "failed"


class BatchScreen(NewJobScreen):
    """Shows one job at a time; what runs here continues while other screens are shown, and after
    the app has ended if the user wants that."""

    CSS_PATH = "batch.tcss"
    BINDING_GROUP_TITLE = "Batch"
    HELP = """
    Answers every row of a file, as `ingot batch` does, in a process of its own: nothing that
    happens here can lose a finished row. Pausing a job finishes its running rows. Resuming it, here
    or with the same command, computes no finished row again.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+g", "start", "Start", id="batch.start"),
        Binding("ctrl+l", "dry_run", "Dry run", id="batch.dry_run"),
        Binding("ctrl+t", "model", "Model", id="batch.model"),
        Binding("f8", "files", "Files", id="batch.files"),
        Binding("ctrl+o", "jobs", "Jobs", id="batch.jobs"),
        Binding("f10", "page", "New/Job", id="batch.page"),
        Binding("p", "pause", "Pause", id="batch.pause"),
        Binding("r", "resume", "Go on", id="batch.resume"),
        Binding("s", "stop", "Stop", id="batch.stop"),
        Binding("f", "follow", "Follow", id="batch.follow"),
        Binding("x", "failed", "Failed", id="batch.failed"),
        Binding("g", "go_to", "Row", id="batch.go_to", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._shown = _LIVE
        self._view: JobView | None = None

    def compose(self) -> ComposeResult:
        with ContentSwitcher(initial="new"):
            yield BatchForm(id="new")
            with Vertical(id="job"):
                yield Static(id="totals", markup=False)
                yield BatchChart(id="chart")
                yield Static(HEADER, id="head", markup=False)
                yield BatchTable(id="rows-table")
                yield Static(id="end", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        services = services_of(self)
        model = services.host.model or services.start.model
        if model:
            self.query_one(BatchForm).fill(model=model)
        self.query_one("#input").focus()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height >= _TALL, "-tall")

    # Any job

    @work(exit_on_error=False, group="dialog")
    async def action_jobs(self) -> None:
        output = await self.app.push_screen_wait(BatchJobsScreen())
        if output is None:
            return
        try:
            self.show(await asyncio.to_thread(attach, output))
        except IngotError as error:
            self._refuse(error)

    def show(self, job: Job) -> None:
        """Follow ``job`` from now on."""
        self.job = job
        self._shown, self._view = _LIVE, None
        self.query_one(BatchTable).show(None, (), keep=False)
        self._turn_to("job")
        self._follow(job)

    @work(exit_on_error=False, exclusive=True, group="follow")
    async def _follow(self, job: Job) -> None:
        """Read on, a few times a second, until another job is shown."""
        while self.job is job:
            more = False
            try:
                more = await asyncio.to_thread(job.poll)
                view = await asyncio.to_thread(job.view)
                if self.is_attached and (view != self._view or view.phase.active):
                    self._draw(job, view)
            except Exception:  # a defect must not leave a job unwatched; the monitor shows it
                log.exception("following %s", job.output)
            await asyncio.sleep(0 if more else _TICK_S)

    def _draw(self, job: Job, view: JobView) -> None:
        before, self._view = self._view, view
        with self.app.batch_update():
            totals = totals_lines(replace(view, output=short(job.output)))
            self.query_one("#totals", Static).update("\n".join(totals))
            self.query_one(BatchChart).show(view.speeds, both=view.prefill is not None)
            self.query_one("#end", Static).update("\n".join(view.lines or view.notes[-1:]))
            if self._shown == _LIVE and not view.phase.active:
                self._shown = _ALL  # nothing moves any more
            self._list(job)
        if before is None or before.phase is not view.phase:
            self.refresh_bindings()
            if before is not None and before.phase.active and not view.phase.active:
                self._tell(view)

    def _list(self, job: Job, *, keep: bool = True) -> None:
        live = self._shown == _LIVE
        self.query_one(BatchTable).show(job, job.list(self._shown), keep=keep and not live)

    def _tell(self, view: JobView) -> None:
        bad = view.phase in (Phase.FAILED, Phase.DIED)
        text = view.lines[0] if view.lines else str(view.phase)
        self.app.notify(
            text,
            title=f"Batch: {view.phase}",
            severity="error" if bad else "warning" if view.failed else "information",
            timeout=10,
            markup=False,
        )

    # The job that is shown

    def action_pause(self) -> None:
        """Finish the running rows, then end: nothing is lost, and the job can be resumed."""
        self._do("pause")

    def action_resume(self) -> None:
        self._do("resume")

    @work(exit_on_error=False, group="dialog")
    async def action_stop(self) -> None:
        """End at once, giving up the running rows."""
        question = "Stop at once? Running rows are given up; finished rows are kept."
        if await self.app.push_screen_wait(ConfirmScreen(question, "Stop")):
            self._do("stop")

    @work(exit_on_error=False, group="do")
    async def _do(self, what: str) -> None:
        job = self.job
        if job is None:
            return
        try:
            await asyncio.to_thread(getattr(job, what))
        except (IngotError, OSError) as error:
            self._refuse(error)
        if what == "resume":
            self._shown = _LIVE

    def action_follow(self) -> None:
        """The running rows and those done last on top; once more: all rows in their order."""
        self._turn_list(_ALL if self._shown == _LIVE else _LIVE)

    def action_failed(self) -> None:
        """Only rows without an answer; once more: all rows."""
        self._turn_list(_ALL if self._shown == _FAILED else _FAILED)

    @work(exit_on_error=False, group="dialog")
    async def action_go_to(self) -> None:
        text = await self.app.push_screen_wait(AskScreen("Row", placeholder="its number, from 0"))
        if text is None:
            return
        number = int(text.replace(",", "")) if text.replace(",", "").isdecimal() else -1
        self._turn_list(_ALL)
        if not self.query_one(BatchTable).go_to(number):
            self.notify(f"There is no row {text}.", severity="warning", markup=False)

    def _turn_list(self, which: str) -> None:
        self._shown = which
        if self.job is not None:
            self._list(self.job, keep=False)
        self._say_list()

    def _say_list(self) -> None:
        said = {
            _LIVE: "running, then the latest",
            _ALL: "all in their order",
            _FAILED: "without an answer",
        }
        self.query_one("#head", Static).update(f"{HEADER}{said[self._shown]}")

    @on(BatchTable.Moved)
    def _moved(self) -> None:
        """Who looks at a row does not want it to be moved away."""
        if self._shown != _LIVE:
            return
        table = self.query_one(BatchTable)
        index = table.index
        self._turn_list(_ALL)
        if index is not None:
            table.go_to(index)

    @on(BatchTable.Opened)
    def _open(self, event: BatchTable.Opened) -> None:
        if self.job is not None:
            self.app.push_screen(BatchRowScreen(self.job, event.index))

    # Pages, and what can be done on each

    def action_page(self) -> None:
        job = self.query_one(ContentSwitcher).current == "job"
        self._turn_to("new" if job else "job")

    def _turn_to(self, page: str) -> None:
        self.query_one(ContentSwitcher).current = page
        self.query_one("#input" if page == "new" else "#rows-table").focus()
        if page == "job":
            self._say_list()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        page = self.query_one(ContentSwitcher).current if self.is_mounted else "new"
        job = self.job if page == "job" else None
        active = self._view is None or self._view.phase.active
        allowed = {
            **dict.fromkeys(("start", "dry_run", "model", "files"), page == "new"),
            **dict.fromkeys(("follow", "failed", "go_to"), job is not None),
            **dict.fromkeys(("pause", "stop"), job is not None and job.own and active),
            "resume": job is not None and not active,
            "page": self.job is not None,
        }
        return allowed.get(action, True)

    @property
    def _pausable(self) -> Job | None:
        job = self.job
        wanted = job is not None and job.own and not job.signalled and job.view().phase.active
        return job if wanted else None

    def interrupt(self) -> bool:
        if self._pausable is None:
            return False
        self._do("pause")
        return True

    def leaving(self) -> str | None:
        job = self._pausable
        if job is None:
            return None
        found = told(self, "[batch.jobs ctrl+o]")
        return (
            f"The batch job on {job.output.name} continues without the app; {found} finds it again."
        )

    def ask_leaving(self) -> ConfirmScreen:
        job = self.job
        assert job is not None
        return BatchLeaveScreen(short(job.output), lambda: _pause(job))

    def _refuse(self, error: Exception) -> None:
        self.notify(str(error), severity="error", timeout=10, markup=False)


def _pause(job: Job) -> None:
    with contextlib.suppress(IngotError):  # it has ended meanwhile
        job.pause()
