"""Finding models on the hub, and getting one of their builds."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Checkbox, Input, ProgressBar, Select, Static

from app.figures import duration
from app.models import hub, library
from app.models.catalog import catalog, size_of
from app.models.hub import (
    Found,
    look_up,
    search,
)
from app.models.pulling import PullJob, PullRequest, PullState, parse_request
from app.tui.keys import bind
from app.tui.screens.dialogs import ConfirmScreen, ListPanel, bind_first, list_keys
from app.tui.textual_patches import Pane, Plain, background, latest
from app.tui.widgets.prompt import SearchLine
from app.tui.widgets.repo_view import BuildTable, FindFilters, RepoTable, RepoView
from quantize.disk import human
from quantize.hub.client import OfflineError
from runtimes.errors import RequestError
from runtimes.machine.hardware import memory_now

_LOOKS = 1 / 8  # seconds between two looks at the job


class Download(Pane):
    """Hidden until something is pulled. Stopping keeps what has arrived: the same download resumes
    from there later. ``use`` is what can be done with a model that is here."""

    class Ended(Message):
        """The download is whole, or was stopped, or has failed."""

    def __init__(self, use: str) -> None:
        super().__init__(id="download")
        self._use = use
        self._request: PullRequest | None = None
        self._job: PullJob | None = None
        self.pulled: str | None = None

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield ProgressBar(id="bar", show_eta=False)
            yield Plain(id="progress")
            yield Button("Stop", id="act", compact=True)

    def on_mount(self) -> None:
        self.display = False

    def on_unmount(self) -> None:
        """Stop: a download does not run unseen."""
        self.stop()

    @property
    def running(self) -> bool:
        """Whether bytes may still come."""
        return self._job is not None

    def begin(self, request: PullRequest) -> None:
        """Pull ``request``, unless another one is on its way."""
        if self._job is not None:
            self.notify("One download at a time: esc stops the one that runs.", severity="warning")
            return
        self._follow(request)

    def stop(self) -> bool:
        """Stop what runs; False when nothing does."""
        if self._job is not None:
            self._job.cancel()
        return self._job is not None

    @background
    async def _follow(self, request: PullRequest) -> None:
        self._request, self.pulled = request, None
        job = self._job = PullJob(request)
        job.start()
        self.display = True
        self.border_title = Content(f"Download {request.name}:{request.what}")
        while not (state := job.poll()).ended:
            self.show(state)
            await asyncio.sleep(_LOOKS)
        self._job = None
        self.show(state)
        if state.path is not None:
            self.pulled = await asyncio.to_thread(name_of, state.path)
        self.post_message(self.Ended())

    def show(self, state: PullState) -> None:
        """Draw how far it is."""
        bar, said = self.query_one("#bar", ProgressBar), self.query_one("#progress", Static)
        button, label = self.query_one("#act", Button), "Stop"
        bar.display = state.total is not None and not state.ended
        bar.update(total=state.total, progress=state.done)
        self.set_class(state.error is not None, "-failed")
        here, text = state.path is not None, progress_line(state)
        if here:
            text, label = "It is here, whole and checked.", self._use
            button.focus()
        elif state.ended:
            stopped = "Stopped. What has arrived stays; the same download resumes from there."
            text, label = state.error or stopped, "Go on"
        said.update(text)
        said.set_class(here, "good")
        button.label, button.variant = label, "primary" if here else "default"

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if self.pulled is not None:
            self.screen.dismiss(self.pulled)
        elif not self.stop() and self._request is not None:
            self.begin(self._request)


def progress_line(state: PullState) -> str:
    """How far a download is, as far as known: "1.2 GB of 4.7 GB · 25 MB/s · 2 min 20 s left"."""
    if state.total is None:
        return f"{state.stage or 'waiting'} ..."
    parts = [f"{human(state.done)} of {human(state.total)}"]
    if state.rate is not None:
        parts.append(f"{human(int(state.rate))}/s")
    if state.seconds_left is not None:
        parts.append(f"{duration(state.seconds_left)} left")
    line = " · ".join(parts)
    return f"{line}\n{state.note}" if state.note else line


def name_of(path: Path) -> str:
    """A pulled file as the library calls it."""
    for model in library.models():
        for build in model.builds:
            if model.path(build) == path:
                return f"{model.repo}:{build.label}"
    return str(path)


_TYPED_S = 0.4  # after a key press, before the hub is asked
_ROWS = 40  # that are read at a time, and left to read before the last is reached


class FindScreen(ListPanel[str]):
    """Ends with the name of a model in the library that is to be used, None when it was left.

    ``words`` may also be ORG/NAME or ORG/NAME:BUILD. ``use`` is what a downloaded model is for.
    """

    HELP = """
    Words search the names of models on the hub; ORG/NAME and enter open one repository. The star
    marks the build for this machine: the largest that fits into the free memory with room, as long
    as it answers about as fast as one reads.
    """
    CSS_PATH = ["../widgets/form.tcss", "find.tcss"]
    HEADING = "Find models"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
    LIST = "#repos"
    BINDINGS = [
        bind("escape", "find.leave", "Stop / Back"),
        bind("tab", "find.other", "Next", action="app.focus_next"),
        bind_first("alt+t", "find.fits", "Fits here"),
        bind_first("alt+s", "find.sort", "Sort"),
        *list_keys("find"),
    ]

    def __init__(self, words: str = "", use: str = "Chat now") -> None:
        super().__init__()
        self._repos = RepoTable()
        self._filters = FindFilters(id="filters")
        self._view = RepoView()
        self._line = SearchLine(words, "Words, or ORG/NAME", id="words")
        self._download = Download(use)
        self._asked: object = None
        self._left: Iterator[Found] | None = None  # results that are not read yet
        self._reading = False

    def contents(self) -> ComposeResult:
        yield self._line
        yield self._filters
        with Horizontal(id="halves"):
            with Pane(id="results"):
                yield self._repos
                yield Plain(id="wrong", classes="bad")
                yield Plain(id="said", classes="muted")
            yield self._view
        yield self._download

    def on_mount(self) -> None:
        self._line.focus()
        self._search()

    # Searching

    @on(Input.Changed, "#words")
    @latest
    async def _typed(self) -> None:
        await asyncio.sleep(_TYPED_S)
        self._search()

    @on(Checkbox.Changed)
    @on(Select.Changed)
    def _search(self) -> None:
        words = self._line.value.strip()
        query = self._filters.query_for(words)
        asked = (words, self._filters.said, query.sort)
        if asked == self._asked:
            return
        self._asked = asked
        named = None
        with suppress(RequestError):
            named = parse_request(words)
        pane = self.query_one("#results")
        heading = str(named.name) if named else hub.heading(query, memory_now()[1])
        pane.border_title = Content(heading)
        pane.border_subtitle = ""
        self._left = None
        # At once: who presses enter must not get to builds of the search before.
        self._repos.show((), keep=False)
        self._say("", "Searching ...")
        self._view.show(None)
        self._find(map(look_up, [named.name]) if named else search(query), named)

    @latest
    async def _find(self, results: Iterator[Found], named: PullRequest | None) -> None:
        try:
            rows = await asyncio.to_thread(_read, results)
        except Exception as error:
            offline = isinstance(error, OfflineError)
            self._say(hub.wrong(error), await asyncio.to_thread(_on_disk) if offline else "")
            return
        self._left = results if len(rows) == _ROWS else None
        self._add(rows)
        if named is not None:
            self._view.show(rows[0], named.name, named.what)
        if not rows:
            left_out = self._filters.said
            self._say("", f"Nothing was found.\nThe filters leave others out: {left_out}.")

    def _add(self, rows: list[Found]) -> None:
        all_rows = [*self._repos.rows, *rows]
        self._repos.show(all_rows)
        self._say("")
        more = "" if self._left is None else " and more"
        self.query_one("#results").border_subtitle = f"{len(all_rows):,}{more}" if all_rows else ""

    @background
    async def _more(self) -> None:
        """The next rows, when the cursor comes near to the last."""
        left = self._left
        if left is None or self._reading:
            return
        self._reading = True
        try:
            rows = await asyncio.to_thread(_read, left)
        except Exception as error:
            self.tell_error(hub.wrong(error))
            rows = []
        finally:
            self._reading = False
        if left is self._left:  # the same search
            self._left = left if len(rows) == _ROWS else None
            self._add(rows)

    def _say(self, wrong: str, text: str = "") -> None:
        """Instead of the table: an error, and what else there is to know."""
        for id, said in (("#wrong", wrong), ("#said", text)):
            line = self.query_one(id, Static)
            line.update(said)
            line.display = bool(said)
        self._repos.display = not (wrong or text)

    @on(RepoTable.Highlighted)
    def _highlighted(self) -> None:
        table, view = self._repos, self._view
        if table.record is None:
            return
        if table.record != view.found:
            view.show(table.record)
        if table.cursor >= len(table.rows) - _ROWS // 2:
            self._more()

    @on(Input.Submitted, "#words")
    def _entered(self) -> None:
        """To the builds; without any, look again."""
        if not self._repos.rows:
            self._asked = None
        self._search()
        self._to_builds()

    @on(RepoTable.Selected)
    def _to_builds(self) -> None:
        builds = self.query_one(BuildTable)
        if builds.display:
            builds.focus()

    def action_fits(self) -> None:
        self.query_one("#fits", Checkbox).toggle()

    def action_sort(self) -> None:
        self._filters.next_order()

    # Getting

    @on(RepoView.Chosen)
    @background
    async def _chosen(self, event: RepoView.Chosen) -> None:
        if event.build.here:
            self.dismiss(f"{event.request.name.repo}:{event.build.kept.label}")
            return
        if event.too_big is not None:
            question = ConfirmScreen(f"{event.too_big}. Download it all the same?", "Download")
            if not await self.app.push_screen_wait(question):
                return
        self._download.begin(event.request)

    @on(Download.Ended)
    def _ended(self) -> None:
        self._view.refresh_builds()

    # Leaving

    def action_leave(self) -> None:
        """Stop the download; else from the builds to the search line; else go back."""
        if self.interrupt():
            return
        if isinstance(self.focused, BuildTable):
            self._line.focus()
        else:
            self.dismiss(None)

    def interrupt(self) -> bool:
        return self._download.stop()

    def leaving(self) -> str | None:
        return "A download runs; what has arrived stays." if self._download.running else None


def _read(results: Iterator[Found]) -> list[Found]:
    return list(islice(results, _ROWS))


def _on_disk() -> str:
    """Names of the models that can be used without the hub."""
    usable = [entry for entry in catalog() if not entry.broken]
    if not usable:
        return "No model is on disk yet."
    names = [f"{entry.label}  {size_of(entry)}" for entry in usable]
    return "\n".join(["On disk, in the list of models:", *names])
