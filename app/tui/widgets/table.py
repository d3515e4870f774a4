"""A table of records, of which only those in sight are drawn: a million cost no more than twenty.

A DataTable keeps objects for every cell of every row.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.tui.keys import quiet

Record = TypeVar("Record")
_NEAR = 500  # rows in which the record under the cursor is looked for when there are others


# Text, plain or with its own styles; or text with its kind: muted, active, good, wait or bad.
Cell = str | Text | tuple[str, str]


@dataclass(frozen=True)
class TableColumn(Generic[Record]):
    """``text`` makes its cell for a record. Without a ``width`` it takes what the others leave. One
    with a ``name`` can be sorted by: a click on its title asks for that."""

    title: str
    text: Callable[[Record], Cell]
    width: int | None = None
    right: bool = False
    name: str = ""


class Table(ScrollView, Generic[Record], can_focus=True):
    """Records are told apart by ``key``. ``Highlighted`` when another one may be under the cursor,
    ``Selected`` when enter is pressed on it, or it is clicked once more."""

    COMPONENT_CLASSES = {
        *("table--head", "table--cursor"),
        *("table--muted", "table--active", "table--good", "table--wait", "table--bad"),
    }
    DEFAULT_CSS = """
    Table {
        overflow-x: hidden;
        & > .table--head { text-style: bold; }
        & > .table--cursor { text-style: reverse; }
        & > .table--muted { color: $text-muted; }
        & > .table--active { color: $text-primary; }
        & > .table--good { color: $text-success; }
        & > .table--wait { color: $text-warning; }
        & > .table--bad { color: $text-error; }
    }
    """
    BINDINGS = [
        quiet("up", "table.up", "Row above", action="cursor_up"),
        quiet("down", "table.down", "Row below", action="cursor_down"),
        quiet("pageup", "table.page_up", "Page up", action="page_up"),
        quiet("pagedown", "table.page_down", "Page down", action="page_down"),
        quiet("home", "table.first", "First row", action="first"),
        quiet("end", "table.last", "Last row", action="last"),
        quiet("enter", "table.select", "Select"),
    ]

    @dataclass
    class Highlighted(Message):
        """``moved``: by the user."""

        moved: bool

    class Selected(Message):
        """The record under the cursor is wanted."""

    @dataclass
    class Sorted(Message):
        """The title of a column with a name was clicked."""

        name: str

    def __init__(
        self,
        columns: Sequence[TableColumn[Record]],
        key: Callable[[Record], Hashable],
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self.columns, self._key = list(columns), key
        self.rows: Sequence[Record] = ()
        self.cursor = 0
        # The column it is sorted by; whether downwards.
        self.sorting: tuple[str, bool] | None = None

    @property
    def record(self) -> Record | None:
        """The one under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def show(self, rows: Sequence[Record], *, keep: bool = True) -> None:
        """Other records, or the same ones anew. With ``keep``, the cursor stays on its record if
        that is still there and near; else it goes to the first."""
        before, self.rows = self.record, rows
        self.virtual_size = Size(0, len(rows) + 1)
        if not keep:
            self._put(0)
        elif before is not None:
            near = range(max(0, self.cursor - _NEAR), min(len(rows), self.cursor + _NEAR))
            key = self._key(before)
            self._put(next((i for i in near if self._key(rows[i]) == key), self.cursor))
        self.refresh()
        self.post_message(self.Highlighted(moved=False))

    def go_to(self, key: Hashable) -> bool:
        """Put the cursor on a record; False when it is not there."""
        at = next((i for i, record in enumerate(self.rows) if self._key(record) == key), None)
        if at is not None:
            self._put(at)
            self.post_message(self.Highlighted(moved=False))
        return at is not None

    # Drawing

    @property
    def room(self) -> int:
        """Columns for what has no width."""
        fixed = sum(column.width or 0 for column in self.columns) + 2 * len(self.columns)
        return max(self.scrollable_size.width - fixed, 1)

    def render_line(self, y: int) -> Strip:
        at, width, style = y - 1 + self.scroll_offset.y, self.scrollable_size.width, self.rich_style
        if y > 0 and at >= len(self.rows):
            return Strip.blank(width, style)
        under = y > 0 and at == self.cursor
        if y == 0 or under:
            style += self._kind("head" if y == 0 else "cursor")
        line = Text(no_wrap=True, end="")
        for column in self.columns:
            text = self._title(column) if y == 0 else column.text(self.rows[at])
            if isinstance(text, tuple):
                text = Text(text[0], self._kind(text[1]))
            # Under the cursor only its own colours, which what a cell has might not be read on.
            cell = text.copy() if isinstance(text, Text) and not under else Text(str(text))
            cell.overflow = "ellipsis"
            cell.align("right" if column.right else "left", column.width or self.room)
            line.append(" ").append_text(cell).append(" ")
        segments = line.render(self.app.console)
        return Strip(Segment.apply_style(segments, style)).adjust_cell_length(width, style)

    def _kind(self, name: str) -> Style:
        return self.get_component_rich_style(f"table--{name}", partial=True)

    def _title(self, column: TableColumn[Record]) -> str:
        if not column.name or self.sorting is None or column.name != self.sorting[0]:
            return column.title
        return f"{column.title}{'▼' if self.sorting[1] else '▲'}"

    def _column_at(self, x: int) -> TableColumn[Record] | None:
        end = 0
        for column in self.columns:
            end += (column.width or self.room) + 2
            if x < end:
                return column
        return None

    # Moving

    def action_cursor_up(self) -> None:
        self._move(self.cursor - 1)

    def action_cursor_down(self) -> None:
        self._move(self.cursor + 1)

    def action_page_up(self) -> None:
        self._move(self.cursor - max(1, self.size.height - 2))

    def action_page_down(self) -> None:
        self._move(self.cursor + max(1, self.size.height - 2))

    def action_first(self) -> None:
        self._move(0)

    def action_last(self) -> None:
        self._move(len(self.rows) - 1)

    def action_select(self) -> None:
        if self.record is not None:
            self.post_message(self.Selected())

    def on_click(self, event: events.Click) -> None:
        at = event.y - 1 + self.scroll_offset.y
        if event.y == 0 and (column := self._column_at(event.x)) and column.name:
            self.post_message(self.Sorted(column.name))
        elif event.y > 0 and at == self.cursor:
            self.action_select()
        elif event.y > 0 and at < len(self.rows):
            self._move(at)

    def _move(self, at: int) -> None:
        self._put(at)
        self.post_message(self.Highlighted(moved=True))

    def _put(self, at: int) -> None:
        self.cursor = max(0, min(at, len(self.rows) - 1))
        top, lines = self.scroll_offset.y, max(1, self.size.height - 1)
        if not top <= self.cursor < top + lines:
            top = self.cursor if self.cursor < top else self.cursor - lines + 1
            self.scroll_to(y=top, animate=False, immediate=True, force=True)
        self.refresh()
