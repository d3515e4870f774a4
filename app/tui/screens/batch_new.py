"""The page of a new job on the batch screen: what its keys do."""

import asyncio
import os
from abc import abstractmethod
from pathlib import Path

from textual import work
from textual.screen import Screen

from app.batch.watch.dry_run import DryRun
from app.batch.watch.form import check
from app.batch.watch.job import Job, start_job
from app.tui.app import app_of
from app.tui.keys import told
from app.tui.modes import Occupied
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.screens.models import ModelsScreen
from app.tui.widgets.batch_files import BatchFilesScreen
from app.tui.widgets.batch_form import BatchForm
from runtimes.errors import IngotError


class NewJobScreen(Occupied, Screen[None]):
    """A screen with a ``BatchForm``; ``show`` gets the job that was started."""

    def __init__(self) -> None:
        super().__init__()
        self.job: Job | None = None
        self._busy = False

    @abstractmethod
    def show(self, job: Job) -> None:
        """Follow ``job`` from now on."""

    def action_start(self) -> None:
        if not self._busy:
            self._start()

    @work(exit_on_error=False, group="start")
    async def _start(self) -> None:
        form = self.query_one(BatchForm)
        job = self.job
        self._busy = True
        form.say(["looking at the files ..."])
        try:
            command = await asyncio.to_thread(check, form.form, Path.cwd())
            if job is not None and job.own and job.view().phase.active:
                question = (
                    f"{job.output} continues by itself while another job is shown;"
                    f" {told(self, '[batch.jobs ctrl+o]')} lists it"
                )
                if not await self.app.push_screen_wait(ConfirmScreen(question, "Start")):
                    form.say([])
                    return
            started = await asyncio.to_thread(start_job, command)
        except (IngotError, OSError) as error:
            form.refuse(error)
            return
        finally:
            self._busy = False
        form.say([])
        self.show(started)

    @work(exit_on_error=False, exclusive=True, group="dry-run")
    async def action_dry_run(self) -> None:
        form = self.query_one(BatchForm)
        form.say(["counting rows and tokens ..."])
        run = None
        try:
            command = await asyncio.to_thread(check, form.form, Path.cwd())
            run = DryRun(command)
            form.say(await asyncio.to_thread(run.lines))
        except (IngotError, OSError) as error:
            form.refuse(error)
        finally:
            if run is not None:
                run.cancel()

    @work(exit_on_error=False, group="dialog")
    async def action_model(self) -> None:
        form = self.query_one(BatchForm)
        typed = form.form.model.strip()
        given = [*app_of(self).named, *([typed] if Path(typed).exists() and typed else [])]
        chosen = await self.app.push_screen_wait(ModelsScreen(given, typed or None))
        if chosen:
            form.fill(model=str(chosen[0].path))

    @work(exit_on_error=False, group="dialog")
    async def action_files(self) -> None:
        form = self.query_one(BatchForm)
        typed = Path(form.form.input).expanduser() if form.form.input else Path()
        folder = typed if typed.is_dir() else typed.parent
        path = await self.app.push_screen_wait(BatchFilesScreen(folder.absolute()))
        if path is not None:
            form.fill(input=short(path))


def short(path: Path) -> str:
    """As one would type it here."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
