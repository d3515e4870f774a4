"""One batch job: how far and how fast it is, its rows, and what can be done with it."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input

from app.batch.watch.follow import RowSearch
from app.batch.watch.job import JobView, Phase, WatchedJob
from app.batch.watch.process import Foreign
from app.batch.watch.rows import By, Which
from app.figures import rate
from app.tui.screens.batch_panels import BatchResumeScreen, BatchRowScreen, short
from app.tui.screens.dialogs import AskScreen, ConfirmScreen
from app.tui.widgets.batch_row import RowPane
from app.tui.widgets.batch_table import BatchTable, JobHeader, RowFilter, Words
from app.tui.widgets.chart import Axis, Chart, Series
from app.tui.widgets.table import Table
from runtimes.errors import IngotError

log = logging.getLogger(__name__)


_TICK_S = 0.25
_SORTS: tuple[By, ...] = ("row", "state", "prompt", "answer", "speed")
_SPEEDS = {"decode": "$text-primary", "prefill": "$text-secondary"}


class BatchJob(Vertical):
    """Follows the job that ``show`` is given."""

    BINDING_GROUP_TITLE = "Job"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "do('pause')", "Pause", id="batch.pause"),
        Binding("r", "do('resume')", "Resume", id="batch.resume"),
        Binding("s", "stop", "Stop", id="batch.stop"),
        Binding("slash", "search", "Search", id="batch.search"),
        Binding("x", "list('failed')", "Failed", id="batch.failed"),
        Binding("alt+s", "sort", "Sort", id="batch.sort", show=False),
        Binding("alt+u", "turn", "Turn the order round", id="batch.turn", show=False),
        Binding("f", "list('live')", "Latest", id="batch.follow", show=False),
        Binding("d", "list('done')", "Done", id="batch.done", show=False),
        Binding("w", "list('running')", "Running", id="batch.working", show=False),
        Binding("g", "go_to", "Row", id="batch.go_to", show=False),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.job: WatchedJob | None = None
        self._shown: Which = "live"
        self._by: tuple[By, bool] = ("row", False)  # the column, and whether downwards
        self._search: RowSearch | None = None
        self._view: JobView | None = None
        self._charted: dict[str, object] = {}  # what the charts show

    def compose(self) -> ComposeResult:
        if self.job is None:  # these many widgets are made when there is something to show
            return
        yield JobHeader()
        with Horizontal(id="job-speeds"):
            for name in _SPEEDS:
                with Container(classes="pane job-speed", id=f"job-{name}"):
                    yield Chart(x=Axis(time=True, low=0), y=Axis(low=0), id=name)
        with Container(id="job-rows"):
            with Vertical(classes="pane", id="job-list") as rows:
                rows.border_title = "Rows"
                yield RowFilter()
                yield BatchTable(id="rows-table")
            yield RowPane(id="job-row")

    async def show(self, job: WatchedJob) -> None:
        """Follow ``job`` from now on."""
        self.job, self._view, self._search = job, None, None
        if not self.children:
            await self.recompose()
        self.query_one(BatchTable).job = job
        self.query_one(Words).value = ""
        self._shown, self._by = "live", ("row", False)
        self.query_one(BatchTable).show((), keep=False)
        self._follow(job)

    @work(exit_on_error=False, exclusive=True, group="follow")
    async def _follow(self, job: WatchedJob) -> None:
        """Read on, a few times a second, until another job is shown."""
        while self.job is job:
            more = False
            try:
                more = await asyncio.to_thread(job.poll)
                view = await asyncio.to_thread(job.view)
                more = await asyncio.to_thread(self._search_on) or more
                if self.is_attached and (more or view != self._view or view.phase.active):
                    known = self._view is not None
                    self._draw(job, view)
                    await self._list(job, keep=known)  # the cursor begins at the first row
            except Exception:  # a defect must not leave a job unwatched; the monitor shows it
                log.exception("following %s", job.output)
            await asyncio.sleep(0 if more else _TICK_S)

    def _draw(self, job: WatchedJob, view: JobView) -> None:
        before, self._view = self._view, view
        with self.app.batch_update():
            self.query_one(JobHeader).show(view, title_of(job))
            for name, color in _SPEEDS.items():
                self._chart(view, name, color)
            if self._shown == "live" and not view.phase.active:
                self._shown = "all"  # nothing moves any more
        if before is None or before.phase is not view.phase:
            self.screen.refresh_bindings()
            if before is not None and before.phase.active and not view.phase.active:
                self._tell(view)

    def _chart(self, view: JobView, name: str, color: str) -> None:
        now, overall = getattr(view, f"{name}_tps_now"), getattr(view, f"{name}_tps")
        shown = (self.job, view.speeds, now, overall)
        if self._charted.get(name) == shown:
            return
        self._charted[name] = shown
        pane = self.query_one(f"#job-{name}")
        points = [(speed.at, getattr(speed, name)) for speed in view.speeds]
        # A journal says nothing of prefill: it is not known of a job that was started elsewhere.
        known = name == "decode" or view.own or any(value for _, value in points)
        pane.set_class(not known, "-unknown")
        pane.border_title = f"{name} tok/s"
        told = [f"{rate(overall)} overall".replace(" tok/s", "")] if overall is not None else []
        told += [f"{rate(now).removesuffix(' tok/s')} now"] if now is not None else []
        pane.border_subtitle = Content(" · ".join(told))
        self.query_one(f"#{name}", Chart).show([Series(name, points, color=color)])

    # Which rows

    async def _list(self, job: WatchedJob, *, keep: bool = True) -> None:
        """Put the rows in order, in a thread: there may be a million."""
        which, by, search = self._shown, self._by, self._search
        found = await asyncio.to_thread(_ordered, job, which, by, search)
        if (job, which, by, search) != (self.job, self._shown, self._by, self._search):
            return
        self.query_one(RowFilter).show(job.counts(), which)
        table = self.query_one(BatchTable)
        table.sorting = None if which == "live" else by
        table.show(found, keep=keep and which != "live")

    @work(exit_on_error=False, exclusive=True, group="list")
    async def _list_anew(self, go_to: int | None = None) -> None:
        if self.job is None:
            return
        await self._list(self.job, keep=False)
        if go_to is not None and not self.query_one(BatchTable).go_to(go_to):
            self.notify(f"There is no row {go_to:,}.", severity="warning", markup=False)

    def _turn_list(self, which: Which, go_to: int | None = None) -> None:
        self._shown = which
        self._list_anew(go_to)

    def _search_on(self) -> bool:
        return self._search is not None and self._search.read()

    @on(Input.Changed, "#row-words")
    def _look_for(self, event: Input.Changed) -> None:
        text, job = event.value.strip(), self.job
        self._search = RowSearch(job.journal, text) if job is not None and text else None
        if job is None:
            return
        if self._search is not None and self._shown == "live":
            self._shown = "all"
        self._find(job)

    @work(exit_on_error=False, exclusive=True, group="find")
    async def _find(self, job: WatchedJob) -> None:
        more = True
        while more and job is self.job:
            more = await asyncio.to_thread(self._search_on)
            await self._list(job)

    @on(RowFilter.Chosen)
    def _chosen(self, event: RowFilter.Chosen) -> None:
        self._turn_list(event.kind)

    @on(Table.Sorted)
    def _sorted(self, event: Table.Sorted) -> None:
        """The same column once more turns the order round; figures begin with the largest."""
        by = next(name for name in _SORTS if name == event.name)
        same = by == self._by[0] and self._shown != "live"
        down = not self._by[1] if same else by in ("prompt", "answer", "speed")
        self._order(by, down=down)

    def _order(self, by: By, *, down: bool) -> None:
        self._by = by, down
        self._turn_list("all" if self._shown == "live" else self._shown)

    # What is told

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
            return False
        if parameters == ("resume",):
            return not active
        return job.own and active if action in ("do", "stop") else True

    def useful(self, action: str) -> bool:
        """Whether there is anything for it to do now."""
        view = self._view
        if view is None or action not in ("do('resume')", "list('failed')"):
            return True
        return view.failed > 0 or (action.startswith("do") and view.phase is not Phase.DONE)

    # What its keys do

    @work(exit_on_error=False, group="do")
    async def action_do(self, what: str) -> None:
        """``pause``: finish the running rows, then end. ``stop``: end at once. ``resume``."""
        job = self.job
        if job is None:
            return
        try:
            if what == "resume":
                command = await asyncio.to_thread(job.resuming)
                agreed = command if isinstance(command, Foreign) else None
                if agreed and not await self.app.push_screen_wait(BatchResumeScreen(agreed)):
                    return
                await asyncio.to_thread(job.resume, agreed)
            else:
                await asyncio.to_thread(getattr(job, what))
        except (IngotError, OSError) as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
        if what == "resume":
            self._turn_list("live")

    @work(exit_on_error=False, group="dialog")
    async def action_stop(self) -> None:
        """End at once, giving up the running rows."""
        question = "Stop at once? Running rows are given up; finished rows are kept."
        if await self.app.push_screen_wait(ConfirmScreen(question, "Stop")):
            self.action_do("stop")

    def action_list(self, which: Which) -> None:
        """Only rows of a kind; once more: all of them."""
        self._turn_list("all" if self._shown == which else which)

    def action_search(self) -> None:
        self.query_one(Words).focus()

    def action_sort(self) -> None:
        """By the next column."""
        by = _SORTS[(_SORTS.index(self._by[0]) + 1) % len(_SORTS)]
        self._order(by, down=by in ("prompt", "answer", "speed"))

    def action_turn(self) -> None:
        self._order(self._by[0], down=not self._by[1])

    @work(exit_on_error=False, group="dialog")
    async def action_go_to(self) -> None:
        text = await self.app.push_screen_wait(AskScreen("Row", placeholder="its number, from 0"))
        if text is None:
            return
        digits = text.replace(",", "")
        if not digits.isdecimal():
            self.notify(f"There is no row {text}.", severity="warning", markup=False)
            return
        self.query_one(Words).value = ""
        self._turn_list("all", int(digits))

    @on(BatchTable.Highlighted)
    def _moved(self, event: BatchTable.Highlighted) -> None:
        """Who looks at a row does not want it to be moved away."""
        index = self.query_one(BatchTable).record
        if event.moved and self._shown == "live" and index is not None:
            self._turn_list("all", index)
        if self.job is not None:
            self.query_one(RowPane).follow(self.job, index)

    @on(BatchTable.Selected)
    def _open(self) -> None:
        index = self.query_one(BatchTable).record
        if self.job is not None and index is not None:
            self.app.push_screen(BatchRowScreen(self.job, index))


def _ordered(
    job: WatchedJob, which: Which, by: tuple[By, bool], search: RowSearch | None
) -> Sequence[int]:
    rows = job.order(which, by[0], down=by[1])
    return rows if search is None else [index for index in rows if index in search.found]


def title_of(job: WatchedJob) -> str:
    """What it reads and writes."""
    asked, output = job.asked, short(job.output)
    if asked is None:
        return output
    return f"{'stdin' if asked.input == '-' else short(Path(asked.input))} → {output}"
