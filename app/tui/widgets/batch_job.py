"""One batch job: how far and how fast it is, its rows, and what can be done with it."""

import asyncio
import logging
from dataclasses import replace
from statistics import fmean
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Label, Sparkline, Static

from app.batch.watch.job import Job
from app.batch.watch.view import JobView, Phase
from app.figures import rate
from app.tui.screens.batch_panels import BatchRowScreen, short
from app.tui.screens.dialogs import AskScreen, ConfirmScreen
from app.tui.widgets.batch_table import BatchTable
from app.tui.widgets.gauge import gauge
from runtimes.errors import IngotError

log = logging.getLogger(__name__)

_TICK_S = 0.25
_GAUGE = 22
_LIVE, _ALL, _FAILED = "live", "all", "failed"
_LISTS = {
    _LIVE: "running, then latest",
    _ALL: "all in their order",
    _FAILED: "without an answer",
}


class BatchJob(Vertical):
    """Follows the job that ``show`` is given."""

    BINDING_GROUP_TITLE = "Job"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "do('pause')", "Pause", id="batch.pause"),
        Binding("r", "do('resume')", "Go on", id="batch.resume"),
        Binding("s", "stop", "Stop", id="batch.stop"),
        Binding("f", "list('live')", "Follow", id="batch.follow"),
        Binding("x", "list('failed')", "Failed", id="batch.failed"),
        Binding("g", "go_to", "Row", id="batch.go_to", show=False),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.job: Job | None = None
        self._shown = _LIVE
        self._view: JobView | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="totals", markup=False)
        for name in ("prefill", "decode"):
            with Horizontal(classes="speed", id=name):
                yield Label(markup=False)
                yield Sparkline(summary_function=fmean)
        yield BatchTable(id="rows-table")
        yield Static(id="end", markup=False)

    def show(self, job: Job) -> None:
        """Follow ``job`` from now on."""
        self.job, self._view = job, None
        self.query_one(BatchTable).job = job
        self._turn_list(_LIVE)
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
            self.query_one("#prefill").display = view.prefill_tps is not None
            for name in ("prefill", "decode"):
                self._chart(name, [getattr(speed, name) for speed in view.speeds])
            self.query_one("#end", Static).update("\n".join(view.lines or view.notes[-1:]))
            if self._shown == _LIVE and not view.phase.active:
                self._shown = _ALL  # nothing moves any more
            self._list(job)
        if before is None or before.phase is not view.phase:
            self.screen.refresh_bindings()
            if before is not None and before.phase.active and not view.phase.active:
                self._tell(view)

    def _chart(self, name: str, values: list[float]) -> None:
        chart = self.query_one(f"#{name}")
        top = max(values, default=0.0)
        label = f"{name} up to {rate(top)}" if top else f"{name}: nothing yet"
        chart.query_one(Label).update(label)
        chart.query_one(Sparkline).data = [0.0, *values]  # its lowest value is the axis

    def _list(self, job: Job, *, keep: bool = True) -> None:
        live = self._shown == _LIVE
        self.query_one(BatchTable).show(job.list(self._shown), keep=keep and not live)

    def _tell(self, view: JobView) -> None:
        bad = view.phase in (Phase.FAILED, Phase.DIED)
        self.app.notify(
            view.lines[0] if view.lines else str(view.phase),
            title=f"Batch: {view.phase}",
            severity="error" if bad else "warning" if view.failed else "information",
            timeout=10,
            markup=False,
        )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        job, active = self.job, self._view is None or self._view.phase.active
        if job is None:
            return action not in ("do", "stop", "list", "go_to")
        if parameters == ("resume",):
            return not active
        return job.own and active if action in ("do", "stop") else True

    # What its keys do

    @work(exit_on_error=False, group="do")
    async def action_do(self, what: str) -> None:
        """``pause``: finish the running rows, then end. ``stop``: end at once. ``resume``."""
        if self.job is None:
            return
        try:
            await asyncio.to_thread(getattr(self.job, what))
        except (IngotError, OSError) as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
        if what == "resume":
            self._shown = _LIVE

    @work(exit_on_error=False, group="dialog")
    async def action_stop(self) -> None:
        """End at once, giving up the running rows."""
        question = "Stop at once? Running rows are given up; finished rows are kept."
        if await self.app.push_screen_wait(ConfirmScreen(question, "Stop")):
            self.action_do("stop")

    def action_list(self, which: str) -> None:
        """Only the live rows, or only those without an answer; once more: all in their order."""
        self._turn_list(_ALL if self._shown == which else which)

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
        self.query_one(BatchTable).caption = _LISTS[which]
        if self.job is not None:
            self._list(self.job, keep=False)

    @on(BatchTable.Highlighted)
    def _moved(self, event: BatchTable.Highlighted) -> None:
        """Who looks at a row does not want it to be moved away."""
        table = self.query_one(BatchTable)
        index = table.record
        if event.moved and self._shown == _LIVE and index is not None:
            self._turn_list(_ALL)
            table.go_to(index)

    @on(BatchTable.Selected)
    def _open(self) -> None:
        index = self.query_one(BatchTable).record
        if self.job is not None and index is not None:
            self.app.push_screen(BatchRowScreen(self.job, index))


def totals_lines(view: JobView) -> list[str]:
    """A job in four lines: what it does, how far it is, how fast, with what."""
    who = "" if view.own else " (watched)"
    phase = f"{view.phase.upper()}{who}"
    if view.part_read < 1 and view.phase is not Phase.RUNNING:
        phase = f"reading the journal ({100 * view.part_read:.0f}%)"
    share = view.done / view.rows if view.rows else None
    speeds = (
        _speed("prefill", view.prefill_tps_now, view.prefill_tps),
        _speed("decode", view.decode_tps_now, view.decode_tps),
    )
    known = ""
    if view.prompt_tokens:
        known = f"{view.prompt_tokens:,} prompt and {view.output_tokens:,} answer tokens so far"
    return [
        f"{phase} · {view.output}",
        f"{gauge(share, _GAUGE)} {view.counts}",
        " · ".join(filter(None, speeds)),
        view.resources or known,
    ]


def _speed(name: str, now: float | None, overall: float | None) -> str:
    if now is not None and overall is not None:
        return f"{name} {rate(now)} (all {rate(overall)})"
    known = overall if now is None else now
    return "" if known is None else f"{name} {rate(known)}"
