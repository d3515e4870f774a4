"""Batch jobs: choose a file, look at it, start, watch every row, pause, go on, open answers."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import cast

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.events import Click
from textual.notifications import SeverityLevel
from textual.widgets import ContentSwitcher, Input, ProgressBar, Static

from app.batch.watch.follow import RowSearch, text_of
from app.batch.watch.job import JobView, Phase, WatchedJob, attach, start_job
from app.batch.watch.process import Foreign
from app.batch.watch.rows import By, RowState, Which
from app.figures import rate
from app.openai.answer import Answer
from app.tui.app import app_of, services_of
from app.tui.keys import bind, quiet, told
from app.tui.screens.batch_panels import (
    BatchJobsScreen,
    BatchLeaveScreen,
    BatchResumeScreen,
    BatchRowScreen,
    RowPane,
    short,
)
from app.tui.screens.dialogs import AskScreen, ConfirmScreen
from app.tui.textual_patches import Pane, Plain, background, latest
from app.tui.widgets.batch_form import BatchForm
from app.tui.widgets.chart import Axis, Chart, Series
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.prompt import SearchLine
from app.tui.widgets.table import Cell, Table, TableColumn
from runtimes.errors import IngotError

_TEXT = 200  # characters of an answer
STATES = {
    RowState.WAITING: ("waiting", "muted"),
    RowState.RUNNING: ("running", "active"),
    RowState.DONE: ("done", "good"),
    RowState.EARLIER: ("before", "muted"),
    RowState.FAILED: ("failed", "bad"),
    RowState.INVALID: ("invalid", "bad"),
}


class BatchTable(Table[int]):
    """The table of a job's rows. Its records are the rows' indexes; ``job`` knows the rest."""

    HELP = """
    The rows of the job. `running` rows have a slot; `before` are answers of an earlier run, which
    are not computed again; `invalid` rows were never asked. Tokens of prompt and answer are
    counted, tok/s is the speed of the answer. **[batch.sort alt+s]** sorts by the next column
    and **[batch.turn alt+u]** turns the order round, as does a click on a column's title.
    """
    BINDING_GROUP_TITLE = "Rows"
    BINDINGS = [bind("enter", "batch.open", "Open", action="select")]
    job: WatchedJob  # is there before rows are

    def __init__(self) -> None:
        super().__init__(
            (
                TableColumn("row", lambda i: (f"{i:,}", "muted"), 9, right=True, name="row"),
                TableColumn("state", lambda i: STATES[self.job.state(i)], 7, name="state"),
                TableColumn("prompt", lambda i: self._count(i, "prompt_tokens"), 7, True, "prompt"),
                TableColumn(
                    "answer", lambda i: self._count(i, "completion_tokens"), 7, True, "answer"
                ),
                TableColumn("tok/s", self._speed, 7, True, "speed"),
                TableColumn("", self._text),
            ),
            key=lambda index: index,
            id="rows-table",
        )

    def show(self, rows: Sequence[int], *, keep: bool = True) -> None:
        """Other rows; with ``keep`` the cursor stays on its row, however far that has moved."""
        before = self.record
        super().show(rows, keep=keep)
        if keep and before is not None and self.record != before and before in rows:
            self._put(rows.index(before))

    def _answer(self, index: int) -> Answer:
        return self.job.answer(index) or Answer()

    def _count(self, index: int, name: str) -> Cell:
        value = (self._answer(index).usage or {}).get(name)
        return "" if value is None else f"{value:,}", "muted"

    def _speed(self, index: int) -> str:
        value = (self._answer(index).timings or {}).get("decode_tps")
        return "" if value is None else rate(value).removesuffix(" tok/s")

    def _text(self, index: int) -> Cell:
        answer = self._answer(index)
        text = " ".join(text_of(answer)[:_TEXT].split())
        return text if answer.error is None else (text, "bad")


# A job in a few lines: what it does, how far it is, what its slots do.

_CELLS = 48  # of the strip; more slots than that share cells
_BAD = frozenset({Phase.FAILED, Phase.DIED})
_WAIT = frozenset({Phase.PAUSED, Phase.PAUSING, Phase.STOPPED, Phase.STOPPING, Phase.ELSEWHERE})


class JobHeader(Pane):
    """``show`` draws a job as it is now."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="job-progress"):
            yield ProgressBar(show_percentage=False, show_eta=False)
            yield Static(id="job-counts")
        yield Static(id="job-slots")
        yield Plain(id="job-said")

    def show(self, view: JobView, title: str) -> None:
        """``title`` is what it reads and writes."""
        self.border_title = Content(title)
        self.border_subtitle = Content(view.state)
        phase = view.phase
        looks = {"-running": phase.active, "-failed": phase in _BAD, "-waiting": phase in _WAIT}
        self.update_classes(looks | {"-done": phase is Phase.DONE})
        self.query_one(ProgressBar).update(total=view.rows or None, progress=view.done)
        self.query_one("#job-counts", Static).update(counts_of(view))
        self.query_one("#job-slots", Static).update(slots_of(view, self.size.width - 4))
        said = self.query_one("#job-said", Static)
        said.update("\n".join(view.lines or [" · ".join(view.notes)]))
        said.set_class(not (view.lines or view.notes), "-empty")


def counts_of(view: JobView) -> Content:
    """Rows, in as many columns whatever they are."""
    rows = f"{view.rows:,}"
    wide, share = len(rows), view.done / view.rows if view.rows else 0.0
    return Content.assemble(
        (f"{view.done:>{wide},}", "bold"),
        (f" of {rows}  ", "$text-muted"),
        (f"{view.failed:>{wide},} failed", "$text-error" if view.failed else "$text-muted"),
        (f"  {int(100 * share):>3}%", "bold"),
    )


def slots_of(view: JobView, room: int) -> Content:
    """A cell for each slot, then what they hold; the figures that there is room for."""
    parts: list[Content] = []
    figures: dict[str, str] = {}
    if view.slots and view.phase.active:
        running = min(view.running or 0, view.slots)
        counts = (running - view.reading, view.reading, view.slots - running)
        wide = len(str(view.slots))
        states = zip(counts, ("decoding", "reading", "free"), strict=True)
        told = [(f" · {count:>{wide}} {what}", "$text-muted") for count, what in states]
        strip = [("Slots ", "$text-muted"), *strip_of(counts)]
        parts.append(Content.assemble(*strip, f" {view.slots}", *told))
    if view.kv_capacity and view.phase.active:
        figures["KV"] = f"{100 * (view.kv_tokens or 0) / view.kv_capacity:>3.0f}%"
    if view.prompt_tokens:
        figures["prefix hits"] = f"{100 * view.cached_tokens / view.prompt_tokens:>3.0f}%"
    if view.memory_bytes:
        figures["memory"] = f"{view.memory_bytes / 2**30:.2f} GiB"
    elif view.prompt_tokens and not view.slots:
        figures["prompts"] = f"{view.prompt_tokens:,} tokens"
        figures["answers"] = f"{view.completion_tokens:,} tokens"
    if view.cached:
        figures["from before"] = f"{view.cached:,}"
    for name, value in figures.items():
        parts.append(Content.assemble((f"{name} ", "$text-muted"), value))
    ends = accumulate(part.cell_length + 3 for part in parts)
    fitting = sum(end - 3 <= room for end in ends)
    return Content("   ").join(parts[:fitting])


def strip_of(counts: tuple[int, int, int]) -> list[tuple[str, str]]:
    """Cells of the slots that decode, read a prompt, and are free."""
    total = sum(counts)
    cells = min(total, _CELLS)
    ends = (round(count * cells / total) for count in accumulate(counts, initial=0))
    marks = (("■", "$text-primary"), ("▪", "$text-warning"), ("□", "$text-muted"))
    return [
        (mark * (end - begin), style)
        for (mark, style), (begin, end) in zip(marks, pairwise(ends), strict=True)
    ]


# Which rows of a job are listed: kinds to choose among, and words to look for.


KINDS: dict[Which, tuple[str, str]] = {  # their titles, and colours of their figures
    "live": ("latest", ""),
    "all": ("all", ""),
    "running": ("running", "$text-primary"),
    "done": ("done", "$text-success"),
    "failed": ("failed", "$text-error"),
}


class Kind(Plain):
    """A click on it lists the rows of its kind."""

    def __init__(self, kind: Which) -> None:
        self.kind = kind
        self._title, self._color = KINDS[kind]
        super().__init__(self._title, id=f"kind-{kind}")

    def show(self, count: int | None, wide: int, *, chosen: bool) -> None:
        color = self._color if count else "$text-muted"
        figure = "" if count is None else f" {count:>{wide},}"
        style = "bold underline $text-primary" if chosen else "$text-muted"
        self.update(Content.assemble((self._title, style), (figure, color)))


class Words(SearchLine):
    """Words to look for; escape forgets them."""

    BINDINGS = [bind("escape", "batch.search_leave", "Back", action="leave")]

    def __init__(self) -> None:
        super().__init__(id="row-words", placeholder="/ words of an answer or error")

    def action_leave(self) -> None:
        self.value = ""
        self.screen.query_one("#rows-table").focus()


class RowFilter(Horizontal):
    """One line above the rows."""

    def compose(self) -> ComposeResult:
        for kind in KINDS:
            yield Kind(kind)
        yield Words()

    def show(self, counts: Mapping[Which, int], chosen: Which) -> None:
        wide = len(f"{counts.get('all', 0):,}")
        for kind in self.query(Kind):
            kind.show(counts.get(kind.kind), wide, chosen=kind.kind == chosen)


log = logging.getLogger(__name__)


_TICK_S = 0.25
_FIGURES: tuple[By, ...] = ("prompt", "answer", "speed")
_SORTS: tuple[By, ...] = ("row", "state", *_FIGURES)
_SPEEDS = {"decode": "$text-primary", "prefill": "$text-secondary"}


@dataclass(frozen=True)
class RowListing:
    """Rows that are listed, by which column, whether downwards, and the words in them."""

    which: Which = "live"
    by: By = "row"
    down: bool = False
    search: RowSearch | None = None

    def rows(self, job: WatchedJob) -> Sequence[int]:
        """The rows of ``job``: there may be a million."""
        rows, search = job.order(self.which, self.by, down=self.down), self.search
        return rows if search is None else [index for index in rows if index in search.found]


class BatchJob(Vertical):
    """Follows the job that ``show`` is given."""

    BINDING_GROUP_TITLE = "Job"
    BINDINGS = [
        bind("p", "batch.pause", "Pause", action="do('pause')"),
        bind("r", "batch.resume", "Resume", action="do('resume')"),
        bind("s", "batch.stop", "Stop"),
        bind("slash", "batch.search", "Search"),
        bind("x", "batch.failed", "Failed", action="list('failed')"),
        quiet("alt+s", "batch.sort", "Sort"),
        quiet("alt+u", "batch.turn", "Turn the order round"),
        quiet("f", "batch.follow", "Latest", action="list('live')"),
        quiet("d", "batch.done", "Done", action="list('done')"),
        quiet("w", "batch.working", "Running", action="list('running')"),
        quiet("g", "batch.go_to", "Row"),
    ]

    def __init__(self) -> None:
        super().__init__(id="job")
        self._table = BatchTable()
        self.job: WatchedJob | None = None
        self._listing = RowListing()
        self._view: JobView | None = None

    def compose(self) -> ComposeResult:
        if self.job is None:  # these many widgets are made when there is something to show
            return
        yield JobHeader()
        with Horizontal(id="job-speeds"):
            for name in _SPEEDS:
                with Container(classes="pane job-speed", id=f"job-{name}"):
                    yield Chart(x=Axis(time=True, low=0), y=Axis(low=0), id=name)
        with Container(id="job-rows"):
            with Pane("Rows", id="job-list"):
                yield RowFilter()
                yield self._table
            yield RowPane()

    async def show(self, job: WatchedJob) -> None:
        """Follow ``job`` from now on."""
        self.job, self._view, self._listing = job, None, RowListing()
        if not self.children:
            await self.recompose()
        self._table.job = job
        self.query_one(Words).value = ""
        self._table.show((), keep=False)
        self._follow(job)

    @latest
    async def _follow(self, job: WatchedJob) -> None:
        """Read on, a few times a second, until another job is shown."""
        searched = True  # some lines were, and are not listed yet
        while self.job is job:
            more = False
            try:
                more = await asyncio.to_thread(job.poll) or searched
                view = await asyncio.to_thread(job.view)
                search = self._listing.search
                searched = search is not None and await asyncio.to_thread(search.read)
                if self.is_attached and (more or view != self._view or view.phase.active):
                    known = self._view is not None
                    self._draw(job, view)
                    await self._list(job, keep=known)  # the cursor begins at the first row
            except Exception:  # a defect must not leave a job unwatched; the monitor shows it
                log.exception("following %s", job.output)
                more = searched = False
            await asyncio.sleep(0 if more or searched else _TICK_S)

    def _draw(self, job: WatchedJob, view: JobView) -> None:
        before, self._view = self._view, view
        with self.app.batch_update():
            self.query_one(JobHeader).show(view, title_of(job))
            for name, color in _SPEEDS.items():
                self._chart(view, name, color)
            if self._listing.which == "live" and not view.phase.active:
                self._listing = replace(self._listing, which="all")  # nothing moves any more
        if before is None or before.phase is not view.phase:
            self.screen.refresh_bindings()
            if before is not None and before.phase.active and not view.phase.active:
                self._tell(view)

    def _chart(self, view: JobView, name: str, color: str) -> None:
        pane, chart = self.query_one(f"#job-{name}"), self.query_one(f"#{name}", Chart)
        points = [(speed.at, getattr(speed, name)) for speed in view.speeds]
        # A journal says nothing of prefill: it is not known of a job that was started elsewhere.
        known = name == "decode" or view.own or any(value for _, value in points)
        pane.set_class(not known, "-unknown")
        pane.border_title = f"{name} tok/s"
        told = [
            f"{rate(value).removesuffix(' tok/s')} {of}"
            for key, of in ((f"{name}_tps", "overall"), (f"{name}_tps_now", "now"))
            if (value := getattr(view, key)) is not None
        ]
        pane.border_subtitle = Content(" · ".join(told))
        series = [Series(name, points, color=color)]
        if series != chart.series:
            chart.show(series)

    # Which rows

    async def _list(self, job: WatchedJob, *, keep: bool = True) -> None:
        """Put the rows in order, in a thread."""
        listing = self._listing
        found = await asyncio.to_thread(listing.rows, job)
        if (job, listing) != (self.job, self._listing):
            return
        self.query_one(RowFilter).show(job.counts(), listing.which)
        live = listing.which == "live"
        self._table.sorting = None if live else (listing.by, listing.down)
        self._table.show(found, keep=keep and not live)

    @latest
    async def _list_anew(self, go_to: int | None = None) -> None:
        if self.job is None:
            return
        await self._list(self.job, keep=False)
        if go_to is not None and not self._table.go_to(go_to):
            self.notify(f"There is no row {go_to:,}.", severity="warning")

    def _turn_list(self, which: Which, go_to: int | None = None) -> None:
        self._listing = replace(self._listing, which=which)
        self._list_anew(go_to)

    @on(Input.Changed, "#row-words")
    def _look_for(self, event: Input.Changed) -> None:
        text, job = event.value.strip(), self.job
        if job is None:
            return
        search = RowSearch(job.journal, text) if text else None
        which: Which = "all" if text and self._listing.which == "live" else self._listing.which
        self._listing = replace(self._listing, search=search, which=which)
        self._follow(job)

    @on(Input.Submitted)
    def _to_rows(self) -> None:
        self._table.focus()

    def on_click(self, event: Click) -> None:
        if isinstance(event.widget, Kind):
            self._turn_list(event.widget.kind)

    @on(Table.Sorted)
    def _sorted(self, event: Table.Sorted) -> None:
        """Sort by a column, once more in the other order; figures begin with the largest."""
        by, listing = cast("By", event.name), self._listing
        same = by == listing.by and listing.which != "live"
        self._order(by, down=not listing.down if same else by in _FIGURES)

    def _order(self, by: By, *, down: bool) -> None:
        self._listing = replace(self._listing, by=by, down=down)
        self._turn_list("all" if self._listing.which == "live" else self._listing.which)

    # What is told

    def _tell(self, view: JobView) -> None:
        said, title = view.lines[0] if view.lines else str(view.phase), f"Batch: {view.phase}"
        app_of(self).ended(f"{title}. {said}", view.elapsed_s or 0.0)
        usual: SeverityLevel = "warning" if view.failed else "information"
        severity = "error" if view.phase in _BAD else usual
        self.notify(said, title=title, severity=severity, timeout=10)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        job, active = self.job, self._view is None or self._view.phase.active
        if job is None:
            return False
        if parameters == ("resume",):
            return not active
        return (job.own and active) or action not in ("do", "stop")

    def useful(self, action: str) -> bool:
        """Whether there is anything for it to do now."""
        view = self._view
        if view is None or action not in ("do('resume')", "list('failed')"):
            return True
        return view.failed > 0 or (action.startswith("do") and view.phase is not Phase.DONE)

    # What its keys do

    @background
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
            self.notify(str(error), severity="error", timeout=10)
        if what == "resume":
            self._turn_list("live")

    @background
    async def action_stop(self) -> None:
        """End at once, giving up the running rows."""
        question = "Stop at once? Running rows are given up; finished rows are kept."
        if await self.app.push_screen_wait(ConfirmScreen(question, "Stop")):
            self.action_do("stop")

    def action_list(self, which: Which) -> None:
        """Only rows of a kind; once more: all of them."""
        self._turn_list("all" if self._listing.which == which else which)

    def action_search(self) -> None:
        self.query_one(Words).focus()

    def action_sort(self) -> None:
        """By the next column."""
        by = _SORTS[(_SORTS.index(self._listing.by) + 1) % len(_SORTS)]
        self._order(by, down=by in _FIGURES)

    def action_turn(self) -> None:
        self._order(self._listing.by, down=not self._listing.down)

    @background
    async def action_go_to(self) -> None:
        text = await self.app.push_screen_wait(AskScreen("Row", placeholder="its number, from 0"))
        if text is None:
            return
        if (digits := text.replace(",", "")).isdecimal():
            self.query_one(Words).value = ""
            self._turn_list("all", int(digits))
        else:
            self.notify(f"There is no row {text}.", severity="warning")

    @on(BatchTable.Highlighted)
    def _moved(self, event: BatchTable.Highlighted) -> None:
        """Pin the row under the cursor while rows arrive, and show it beside the table."""
        index = self._table.record
        if event.moved and self._listing.which == "live" and index is not None:
            self._turn_list("all", index)
        if self.job is not None:
            self.query_one(RowPane).follow(self.job, index)

    @on(BatchTable.Selected)
    def _open(self) -> None:
        index = self._table.record
        if self.job is not None and index is not None:
            self.app.push_screen(BatchRowScreen(self.job, index))


def title_of(job: WatchedJob) -> str:
    """Input and output of a job."""
    asked, output = job.asked, short(job.output)
    if asked is None:
        return output
    return f"{'stdin' if asked.input == '-' else short(Path(asked.input))} → {output}"


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
