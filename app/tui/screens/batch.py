"""Batch jobs: choose a file, look at it, start, watch every row, pause, go on, open answers."""

import asyncio
from contextlib import suppress

from textual import on
from textual.app import ComposeResult
from textual.widgets import ContentSwitcher

from app.batch.watch.job import WatchedJob, attach, start_job
from app.tui.app import services_of
from app.tui.keys import bind, told
from app.tui.screens.batch_panels import BatchJobsScreen, BatchLeaveScreen, short
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.textual_patches import background
from app.tui.widgets.batch_form import BatchForm
from app.tui.widgets.batch_job import BatchJob
from app.tui.widgets.frame import ModeScreen
from runtimes.errors import IngotError


class BatchScreen(ModeScreen):
    """Shows one job at a time; what runs here continues while other screens are shown, and after
    the app has ended if the user wants that."""

    MODE = "batch"
    CSS_PATH = ["../widgets/form.tcss", "batch.tcss"]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (150, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (32, "-tall"), (48, "-high")]
    BINDING_GROUP_TITLE = "Batch"
    HELP = """
    Answers every row of a file, as `ingot batch` does, in a process of its own: nothing that
    happens here can lose a finished row. Pausing a job finishes its running rows. Resuming it, here
    or with the same command, computes no finished row again; rows that failed are tried again.

    **New job**: what is wrong stands under its field, and **[form.next_error alt+n]** goes to the
    next one. **[batch.like F7]** fills the form like an earlier job, **[batch.save F9]** saves its
    settings under a name.

    **Job**: the strip has a cell for each slot: ■ decodes, ▪ reads a prompt, □ is free. **f**
    lists the latest rows, **x**, **d** and **w** those that failed, are done, or run; once more
    all. **[batch.search /]** looks for words, **[batch.sort alt+s]** sorts by the next column,
    **[batch.turn alt+u]** turns the order round, **[batch.go_to g]** goes to a row.
    """
    BINDINGS = [
        bind("ctrl+o", "batch.jobs", "Jobs"),
        bind("f10", "batch.page", "New/Job"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._panel = BatchJob()
        self._form = BatchForm()
        self._pages = ContentSwitcher(self._form, self._panel, initial="new")

    def contents(self) -> ComposeResult:
        yield self._pages

    def on_mount(self) -> None:
        services = services_of(self)
        model = services.host.model or services.start.model
        if model:
            self._form.fill(model=model)
        self.query_one("#input").focus()

    @property
    def job(self) -> WatchedJob | None:
        """The one that is followed."""
        return self._panel.job

    async def show(self, job: WatchedJob) -> None:
        """Follow ``job`` from now on."""
        await self._panel.show(job)
        self._turn_to("job")

    @on(BatchForm.Checked)
    @background
    async def _start(self, event: BatchForm.Checked) -> None:
        form, job = self._form, self.job
        if job is not None and job.own and job.view().phase.active:
            question = (
                f"{job.output} continues by itself while another job is shown;"
                f" {told(self, '[batch.jobs ctrl+o]')} lists it"
            )
            if not await self.app.push_screen_wait(ConfirmScreen(question, "Start")):
                form.say("")
                return
        try:
            started = await asyncio.to_thread(start_job, event.command)
        except (IngotError, OSError) as error:
            form.say(str(error))
            return
        form.say("")
        await self.show(started)

    @background
    async def action_jobs(self) -> None:
        output = await self.app.push_screen_wait(BatchJobsScreen())
        if output is None:
            return
        with self.errors_told():
            await self.show(await asyncio.to_thread(attach, output))

    # Pages

    def action_page(self) -> None:
        self._turn_to("new" if self._pages.current == "job" else "job")

    def _turn_to(self, page: str) -> None:
        self._pages.current = page
        self.set_focus(self.query_one("#input" if page == "new" else "#rows-table"))
        self.refresh_bindings()

    def can(self, action: str) -> bool:
        return action != "page" or self.job is not None

    def useful(self, action: str) -> bool:
        return self._panel.useful(action)

    # Leaving

    @property
    def _pausable(self) -> WatchedJob | None:
        job = self.job
        wanted = job is not None and job.own and not job.signalled and job.view().phase.active
        return job if wanted else None

    def interrupt(self) -> bool:
        if self._pausable is None:
            return False
        self._panel.action_do("pause")
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

        def pause() -> None:
            with suppress(IngotError):  # it has ended meanwhile
                job.pause()

        return BatchLeaveScreen(short(job.output), pause)
