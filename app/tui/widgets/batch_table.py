"""The rows of a job, of which only those in sight are drawn.

A DataTable keeps objects for every cell of every row; here a million rows cost no more than twenty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.batch.watch.rows import RowFigures, RowState
from app.figures import rate

_NAMES = {
    RowState.WAITING: "waiting",
    RowState.RUNNING: "running",
    RowState.DONE: "done",
    RowState.EARLIER: "before",
    RowState.FAILED: "FAILED",
    RowState.INVALID: "INVALID",
}
_FORM = "{:>9}  {:<8}{:>8}{:>8}{:>9}{:>9}  {}"
HEADER = _FORM.format("row", "state", "prompt", "answer", "prefill", "decode", "")


class RowSource(Protocol):
    """What the table asks for; see `app.batch.watch.job.Job`."""

    def state(self, index: int) -> RowState:
        """The state of a row."""

    def figures(self, index: int) -> RowFigures | None:
        """What it took, once it is finished."""


class BatchTable(ScrollView, can_focus=True):
    """``Opened`` when enter is pressed on a row, ``Moved`` when the user moves the cursor."""

    HELP = """
    The rows of the job. `running` rows have a slot; `before` are answers of an earlier run, which
    are not computed again; `INVALID` rows were never asked. Tokens of prompt and answer are
    counted, speeds are tokens per second.
    """
    BINDING_GROUP_TITLE = "Rows"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"batch-table--cursor", "batch-table--failed"}
    DEFAULT_CSS = """
    BatchTable {
        overflow-x: hidden;
        & > .batch-table--cursor { text-style: reverse; }
        & > .batch-table--failed { color: $error; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Row above", id="batch.up", show=False),
        Binding("down", "move(1)", "Row below", id="batch.down", show=False),
        Binding("pageup", "page(-1)", "Page up", id="batch.page_up", show=False),
        Binding("pagedown", "page(1)", "Page down", id="batch.page_down", show=False),
        Binding("home", "end(-1)", "First row", id="batch.first", show=False),
        Binding("end", "end(1)", "Last row", id="batch.last", show=False),
        Binding("enter", "open", "Open row", id="batch.open"),
    ]
    cursor: reactive[int] = reactive(0)

    @dataclass
    class Opened(Message):
        """A row is to be shown whole."""

        index: int

    class Moved(Message):
        """The user looks at another row."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._source: RowSource | None = None
        self._rows: Sequence[int] = ()

    @property
    def index(self) -> int | None:
        return self._rows[self.cursor] if self.cursor < len(self._rows) else None

    def show(self, source: RowSource | None, rows: Sequence[int], *, keep: bool = True) -> None:
        """Draw ``rows`` anew. With ``keep``, the cursor stays on its row, if that is still there
        and near; else it goes to the first."""
        index = self.index
        self._source, self._rows = source, rows
        size = Size(0, len(rows))
        if size != self.virtual_size:
            self.virtual_size = size
        if not keep:
            self.cursor = 0
            self.scroll_home(animate=False)
        elif index is not None and self.index != index:
            near = range(max(0, self.cursor - 500), min(len(rows), self.cursor + 500))
            at = next((i for i in near if rows[i] == index), None)
            self.cursor = min(self.cursor, max(0, len(rows) - 1)) if at is None else at
            self._reveal()
        self.refresh()

    def go_to(self, index: int) -> bool:
        """Put the cursor on a row; False when it is not shown."""
        try:
            self.cursor = self._rows.index(index)
        except ValueError:
            return False
        self._reveal()
        return True

    # Drawing

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        width = self.size.width
        base = self.rich_style
        if at >= len(self._rows) or self._source is None:
            return Strip.blank(width, base)
        index = self._rows[at]
        state = self._source.state(index)
        line = Text(line_of(index, state, self._source.figures(index)), no_wrap=True, end="")
        line.truncate(width, overflow="ellipsis", pad=True)
        style = base
        if state in (RowState.FAILED, RowState.INVALID):
            style += self.get_component_rich_style("batch-table--failed", partial=True)
        if at == self.cursor and self.has_focus:
            style += self.get_component_rich_style("batch-table--cursor", partial=True)
        elif at == self.cursor:
            style += Style(bold=True)
        return Strip([Segment(line.plain, style)]).adjust_cell_length(width, style)

    # Moving

    def action_move(self, step: int) -> None:
        self._move(self.cursor + step)

    def action_page(self, step: int) -> None:
        self._move(self.cursor + step * max(1, self.size.height - 1))

    def action_end(self, side: int) -> None:
        self._move(0 if side < 0 else len(self._rows) - 1)

    def action_open(self) -> None:
        if self.index is not None:
            self.post_message(self.Opened(self.index))

    def on_click(self, event: events.Click) -> None:
        at = event.y + self.scroll_offset.y
        if at < len(self._rows):
            self._move(at)
            if event.chain == 2:
                self.action_open()

    def _move(self, at: int) -> None:
        self.cursor = max(0, min(at, len(self._rows) - 1))
        self._reveal()
        self.post_message(self.Moved())

    def _reveal(self) -> None:
        region = Region(0, self.cursor, max(1, self.size.width), 1)
        self.scroll_to_region(region, animate=False, immediate=True, force=True)


def line_of(index: int, state: RowState, figures: RowFigures | None) -> str:
    """A row as the table shows it."""
    cells: tuple[str, ...] = ("",) * 5
    if figures is not None:
        cells = (
            _count(figures.prompt_tokens),
            _count(figures.output_tokens),
            _speed(figures.prefill_tps),
            _speed(figures.decode_tps),
            figures.error or figures.text,
        )
    return _FORM.format(f"{index:,}", _NAMES[state], *cells).rstrip()


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _speed(value: float | None) -> str:
    return "" if value is None else rate(value).removesuffix(" tok/s")
