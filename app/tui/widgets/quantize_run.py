"""A run while it lasts and what became of it; the files that were built, in a table and a chart."""

import os
import sys
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from app.builds.progress import QuantizeRun, State, headline, recipe_lines, stage_line
from app.builds.results import Result, Row
from app.options import ModelOptions
from app.tui.app import app_of
from app.tui.widgets.table import Column, Table


class QuantizeProgress(Vertical):
    """The recipes stay in sight; stages and notes scroll below them."""

    HELP = """
    The files of this run, the stages with the time that each took or has left, and the messages of
    quantize. A stopped run keeps what is finished: starting it again resumes from there.
    """

    def compose(self) -> ComposeResult:
        nothing = "Nothing runs. Choose a model and recipes, and press Build."
        yield Static(nothing, id="files", markup=False)
        with VerticalScroll(id="log"):
            yield Static(id="stages", markup=False)

    def show(self, run: QuantizeRun, now: float) -> None:
        """Bring everything up to date; ``now`` is in seconds since 1970."""
        head = Content.styled(headline(run, now), "bold")
        lines = [head, *(Content(line) for line in recipe_lines(run))]
        self.query_one("#files", Static).update(Content("\n").join(lines))
        said = [stage_line(stage, now) for stage in run.stages]
        if run.notes:
            said += ["", "Notes", *(f"  {note}" for note in run.notes)]
        if run.error and run.state in (State.FAILED, State.PARTLY):
            said += ["", "What went wrong", *(f"  {line}" for line in run.error.splitlines())]
        log = self.query_one("#log", VerticalScroll)
        follow = log.scroll_offset.y >= log.max_scroll_y
        self.query_one("#stages", Static).update("\n".join(said))
        if follow:
            log.scroll_end(animate=False)


class QuantizeResult(Vertical):
    """From here a file is loaded for a chat, and the page with all figures is found."""

    HELP = """
    Each file with its size, its mean KL divergence from the original (in nats, 0 is the original),
    how often both find the same token the most likely, its accuracy on graded questions, its
    tokens per second alone and for 16 rows together, and its peak memory. A dash was not
    measured. The letters stand in the chart: left is smaller, lower is closer to the original.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "report", "Report", id="quantize.report"),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.result: Result | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="advice", markup=False)
        yield FileTable(id="files-table")
        yield _Chart(id="chart")

    def on_mount(self) -> None:
        self.show(None)

    def show(self, result: Result | None) -> None:
        """Another folder's files, or new figures."""
        self.result = result
        table = self.query_one(FileTable)
        table.display = result is not None and bool(result.rows)
        chart = self.query_one(_Chart)
        chart.result = result
        chart.refresh()
        advice = self.query_one("#advice", Static)
        if result is None:
            advice.update("No files yet. Name a model that was built before, or build one.")
            return
        best = f"Recommended: {result.advice}" if result.advice else "Nothing was measured."
        advice.update(f"{result.model} in {result.folder}\n{best}")
        table.show_result(result)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.result is not None if action == "report" else True

    @on(Table.Selected)
    def _chat(self) -> None:
        """Load the file under the cursor."""
        row = self.query_one(FileTable).record
        if self.result is not None and row is not None:
            app = app_of(self)
            app.load_model(str(self.result.folder), ModelOptions(recipe=row.recipe))
            app.switch_mode("chat")

    def action_report(self) -> None:
        """Show where the page is; open it where there is a desktop to open it on."""
        if self.result is None:
            return
        path = self.result.report
        if path is None:
            self.notify("There is no report yet; building writes it.", severity="warning")
            return
        self.app.copy_to_clipboard(str(path))
        self.notify(f"{path}\n(its path is copied)", title="Report", timeout=10, markup=False)
        if _has_desktop() and not self.app.is_headless:
            self.app.open_url(path.resolve().as_uri())


class FileTable(Table[Row]):
    """The files of a ``Result``, with the columns that it has."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Chat with this file", id="quantize.chat_row"),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__((), key=lambda row: row.recipe, id=id)

    def show_result(self, result: Result) -> None:
        names = ["File", *(row.recipe for row in result.rows)]
        self.columns = [
            Column("", lambda row: row.mark, 1),
            Column("File", lambda row: row.recipe, max(map(len, names))),
        ]
        for at, heading in enumerate(result.headings):
            width = max(len(heading), *(len(row.cells[at]) for row in result.rows))
            self.columns.append(Column(heading, partial(_cell, at), width, right=True))
        self.show(result.rows)


def _cell(at: int, row: Row) -> str:
    return row.cells[at]


class _Chart(Widget):
    """Size against divergence, as large as there is room; see ``app.builds.results``."""

    result: Result | None = None

    def render(self) -> RenderResult:
        if self.result is None:
            return ""
        if self.result.chart is None:
            return "Nothing was measured, so there is no chart."
        return Content("\n".join(self.result.plot(self.size.width, self.size.height)))


def _has_desktop() -> bool:
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) or sys.platform in ("darwin", "win32")
