"""Finding models on the hub, and getting one of their builds."""

import asyncio
from collections.abc import Hashable, Iterator
from itertools import islice
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Checkbox, Input, Static

from app.models import hub
from app.models.catalog import catalog
from app.models.entries import size_of
from app.models.hub import Found, look_up, search
from app.models.pulling import PullRequest, parse_request
from app.tui.modes import Occupied
from app.tui.screens.dialogs import ConfirmScreen, Panel
from app.tui.widgets.download import Download
from app.tui.widgets.find_tables import BuildTable, FindFilters, RepoTable
from app.tui.widgets.prompt import SearchLine
from app.tui.widgets.repo_view import RepoView
from quantize.hub.client import OfflineError
from runtimes.errors import RequestError
from runtimes.machine.hardware import memory_now

_TYPED_S = 0.4  # after a key press, before the hub is asked
_ROWS = 40  # that are read at a time, and left to read before the last is reached
_MOVES = {"up": "move(-1)", "down": "move(1)", "pageup": "page(-1)", "pagedown": "page(1)"}


class FindScreen(Occupied, Panel[str]):
    """Ends with the name of a model in the library that is to be used, None when it was left.

    ``words`` may also be ORG/NAME or ORG/NAME:BUILD. ``use`` is what a downloaded model is for.
    """

    HELP = """
    Words search the names of models on the hub; ORG/NAME and enter open one repository. The star
    marks the build for this machine: the largest that fits into the free memory with room, as long
    as it answers about as fast as one reads.
    """
    CSS_PATH: ClassVar[list[str]] = ["../widgets/form.tcss", "find.tcss"]  # type: ignore[assignment]
    HEADING = "Find models"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 -- Textual's
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Stop / Back", id="find.leave"),
        Binding("tab", "app.focus_next", "Next", id="find.other", show=True),
        Binding("alt+t", "fits", "Fits here", id="find.fits", priority=True),
        Binding("alt+s", "sort", "Sort", id="find.sort", priority=True),
        *(Binding(key, action, show=False, id=f"find.{key}") for key, action in _MOVES.items()),
        Binding("home,ctrl+home", "end(-1)", show=False, id="find.home"),
        Binding("end,ctrl+end", "end(1)", show=False, id="find.end"),
    ]

    def __init__(self, words: str = "", use: str = "Chat now") -> None:
        super().__init__()
        self._words, self._use = words, use
        self._timer: Timer | None = None
        self._asked: tuple[Hashable, ...] = ()
        self._left: Iterator[Found] | None = None  # results that are not read yet
        self._reading = False

    def contents(self) -> ComposeResult:
        yield SearchLine(self._words, "Words, or ORG/NAME", id="words")
        yield FindFilters(id="filters")
        with Horizontal(id="halves"):
            with Vertical(classes="pane", id="results"):
                yield RepoTable(id="repos")
                yield Static(id="wrong", classes="bad", markup=False)
                yield Static(id="said", classes="muted", markup=False)
            yield RepoView(id="one")
        yield Download(self._use, id="download")

    def on_mount(self) -> None:
        self.query_one("#words").focus()
        self._search()

    # Searching

    @on(Input.Changed, "#words")
    def _typed(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(_TYPED_S, self._search)

    @on(FindFilters.Changed)
    def _search(self) -> None:
        words = self.query_one("#words", Input).value.strip()
        asked = (words, *self.query_one(FindFilters).values)
        if asked != self._asked:
            self._asked = asked
            self._begin(words)

    def _begin(self, words: str) -> None:
        try:
            named = parse_request(words)
        except RequestError:
            named = None
        query = self.query_one(FindFilters).query_for(words)
        pane = self.query_one("#results")
        heading = str(named.name) if named else hub.heading(query, memory_now()[1])
        pane.border_title = Content(heading)
        pane.border_subtitle = ""
        self._left = None
        if named is not None:
            self._find(None, named)
        else:
            self._find(search(query))

    @work(exclusive=True, exit_on_error=False, group="find")
    async def _find(
        self, results: Iterator[Found] | None, named: PullRequest | None = None
    ) -> None:
        self.query_one(RepoTable).show((), keep=False)
        self._say("", "Searching ...")
        view = self.query_one(RepoView)
        view.show(None)
        try:
            if named is not None:
                rows = [await asyncio.to_thread(look_up, named.name)]
            else:
                assert results is not None
                rows = await asyncio.to_thread(lambda: list(islice(results, _ROWS)))
        except Exception as error:
            offline = isinstance(error, OfflineError)
            self._say(hub.wrong(error), await asyncio.to_thread(_on_disk) if offline else "")
            return
        self._left = results if len(rows) == _ROWS else None
        self._add(rows)
        if named is not None:
            view.show(rows[0], named.name, named.what)
        if not rows:
            left_out = self.query_one(FindFilters).said
            self._say("", f"Nothing was found.\nThe filters leave others out: {left_out}.")

    def _add(self, rows: list[Found]) -> None:
        table = self.query_one(RepoTable)
        all_rows = [*table.rows, *rows]
        table.show(all_rows)
        self._say("")
        more = "" if self._left is None else " and more"
        self.query_one("#results").border_subtitle = f"{len(all_rows):,}{more}" if all_rows else ""

    @work(exit_on_error=False, group="more")
    async def _more(self) -> None:
        """The next rows, when the cursor comes near to the last."""
        left = self._left
        if left is None or self._reading:
            return
        self._reading = True
        try:
            rows = await asyncio.to_thread(lambda: list(islice(left, _ROWS)))
        except Exception as error:
            self.notify(hub.wrong(error), severity="error", markup=False)
            rows = []
        finally:
            self._reading = False
        if left is self._left:  # the same search
            self._left = left if len(rows) == _ROWS else None
            self._add(rows)

    def _say(self, wrong: str, text: str = "") -> None:
        """Instead of the table: an error, and what else there is to know."""
        self.query_one("#wrong", Static).update(wrong)
        self.query_one("#said", Static).update(text)
        self.query_one("#wrong").display = bool(wrong)
        self.query_one("#said").display = bool(text)
        self.query_one(RepoTable).display = not (wrong or text)

    @on(RepoTable.Highlighted)
    def _highlighted(self) -> None:
        table, view = self.query_one(RepoTable), self.query_one(RepoView)
        if table.record is None:
            return
        if table.record != view.found:
            view.show(table.record)
        if table.cursor >= len(table.rows) - _ROWS // 2:
            self._more()

    @on(Input.Submitted, "#words")
    def _entered(self) -> None:
        """To the builds; without any, look again."""
        if not self.query_one(RepoTable).rows:
            self._asked = ()
        self._search()
        self._to_builds()

    @on(RepoTable.Selected)
    def _to_builds(self) -> None:
        builds = self.query_one(BuildTable)
        if builds.display:
            builds.focus()

    def action_move(self, step: int) -> None:
        """The search line keeps the cursor; these keys move through the table."""
        self.query_one(RepoTable).action_move(step)

    def action_page(self, step: int) -> None:
        self.query_one(RepoTable).action_page(step)

    def action_end(self, side: int) -> None:
        self.query_one(RepoTable).action_end(side)

    def action_fits(self) -> None:
        self.query_one("#fits", Checkbox).toggle()

    def action_sort(self) -> None:
        self.query_one(FindFilters).next_order()

    # Getting

    @on(RepoView.Chosen)
    @work(exit_on_error=False, group="dialog")
    async def _chosen(self, event: RepoView.Chosen) -> None:
        if event.build.here:
            self.dismiss(f"{event.request.name.repo}:{event.build.kept.label}")
            return
        if event.too_big is not None:
            question = ConfirmScreen(f"{event.too_big}. Download it all the same?", "Download")
            if not await self.app.push_screen_wait(question):
                return
        self.query_one(Download).begin(event.request)

    @on(Download.Ended)
    def _ended(self) -> None:
        self.query_one(RepoView).refresh_builds()

    @on(Download.Wanted)
    def _use_it(self, event: Download.Wanted) -> None:
        self.dismiss(event.name)

    # Leaving

    def action_leave(self) -> None:
        """Stop the download; else from the builds to the search line; else go back."""
        words = self.query_one("#words", Input)
        if self.interrupt():
            return
        if isinstance(self.focused, BuildTable):
            words.focus()
        else:
            self.dismiss(None)

    def interrupt(self) -> bool:
        return self.query_one(Download).stop()

    def leaving(self) -> str | None:
        running = self.query_one(Download).running
        return "A download runs; what has arrived stays." if running else None


def _on_disk() -> str:
    """What can be used without the hub."""
    usable = [entry for entry in catalog() if not entry.broken]
    if not usable:
        return "No model is on disk yet."
    names = [f"{entry.label}  {size_of(entry)}" for entry in usable]
    return "\n".join(["On disk, in the list of models:", *names])
