"""The files that were built: their table, and their chart."""

import os
import sys
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Static

from app.builds.results import Result, Row
from app.options import ModelOptions
from app.tui.app import app_of

_NOTHING = "No files yet. Name a model that was built before, or build one."


class QuantizeResult(Vertical):
    """From here a file is loaded for a chat, and the page with all figures is found."""

    HELP = """
    Each file with its size, its mean KL divergence from the original (in nats, 0 is the original),
    how often both find the same token the most likely, its accuracy on graded questions, its
    tokens per second alone and for 16 rows together, and its peak memory. A dash was not
    measured. The letters stand in the chart: left is smaller, lower is closer to the original.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "chat", "Chat with this file", id="quantize.chat"),
        Binding("r", "report", "Report", id="quantize.report"),
    ]
    DEFAULT_CSS = """
    QuantizeResult {
        padding: 0 1;
        & > #advice { height: auto; max-height: 3; }
        & > DataTable { height: auto; max-height: 60%; }
        & > #chart { height: 1fr; min-height: 0; }
    }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.result: Result | None = None

    def compose(self) -> ComposeResult:
        yield Static(_NOTHING, id="advice", markup=False)
        yield _Table(id="files-table", cursor_type="row", zebra_stripes=False)
        yield _Chart(id="chart")

    def show(self, result: Result | None) -> None:
        """Another folder's files, or new figures."""
        self.result = result
        table = self.query_one(DataTable)
        before = table.cursor_row
        table.clear(columns=True)
        table.display = result is not None and bool(result.rows)
        chart = self.query_one(_Chart)
        chart.result = result
        chart.refresh()
        advice = self.query_one("#advice", Static)
        if result is None:
            advice.update(_NOTHING)
            return
        best = f"Recommended: {result.advice}" if result.advice else "Nothing was measured."
        advice.update(f"{result.model} in {result.folder}\n{best}")
        table.add_column("", width=1)
        table.add_column("File")
        for heading in result.headings:
            table.add_column(Text(heading, justify="right"))
        for row in result.rows:
            cells = [Text(cell, justify="right") for cell in row.cells]
            table.add_row(Text(row.mark), Text(row.recipe), *cells, key=row.recipe)
        table.move_cursor(row=min(before, len(result.rows) - 1))
        self.refresh_bindings()

    @property
    def row(self) -> Row | None:
        """The file under the cursor."""
        at = self.query_one(DataTable).cursor_row
        rows = self.result.rows if self.result else ()
        return rows[at] if 0 <= at < len(rows) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.result is not None if action in ("chat", "report") else True

    @on(DataTable.RowSelected)
    def action_chat(self) -> None:
        """Load the file under the cursor."""
        if self.result is not None and self.row is not None:
            app = app_of(self)
            app.load_model(str(self.result.folder), ModelOptions(recipe=self.row.recipe))
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


class _Table(DataTable[Text]):
    """Enter is shown as what it does here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Chat with this file", id="quantize.chat_row"),
    ]


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
