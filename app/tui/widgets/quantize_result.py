"""The files that were built: their table, and their chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import DataTable, Static

from app.builds.results import Result, Row
from app.tui.widgets.scatter import Scatter

_NOTHING = "No files yet. Name a model that was built before, or build one."


class QuantizeResult(Vertical):
    """``Chat`` asks for a file to be loaded, ``Report`` for the page with all figures."""

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
    }
    """

    @dataclass
    class Chat(Message):
        """Load this file."""

        result: Result
        row: Row

    @dataclass
    class Report(Message):
        """Where the report of this folder is."""

        result: Result

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.result: Result | None = None

    def compose(self) -> ComposeResult:
        yield Static(_NOTHING, id="advice", markup=False)
        yield _Table(id="files-table", cursor_type="row", zebra_stripes=False)
        yield Scatter(id="chart")

    def show(self, result: Result | None) -> None:
        self.result = result
        table = self.query_one(DataTable)
        before = table.cursor_row
        table.clear(columns=True)
        table.display = result is not None and bool(result.rows)
        self.query_one(Scatter).show(result)
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
        at = self.query_one(DataTable).cursor_row
        rows = self.result.rows if self.result else ()
        return rows[at] if 0 <= at < len(rows) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.result is not None if action in ("chat", "report") else True

    @on(DataTable.RowSelected)
    def action_chat(self) -> None:
        if self.result is not None and self.row is not None:
            self.post_message(self.Chat(self.result, self.row))

    def action_report(self) -> None:
        if self.result is not None:
            self.post_message(self.Report(self.result))


class _Table(DataTable[Text]):
    """Enter is shown as what it does here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Chat with this file", id="quantize.chat_row"),
    ]
