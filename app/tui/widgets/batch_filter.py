"""Which rows of a job are listed: kinds to choose among, and words to look for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from app.batch.watch.rows import Which
from app.tui.widgets.readline import SearchLine

KINDS: tuple[Which, ...] = ("live", "all", "running", "done", "failed")
_TITLES = {"live": "latest"}
_COLORS = {"running": "$text-primary", "done": "$text-success", "failed": "$text-error"}


class Kind(Static):
    """A click lists the rows of its kind."""

    def __init__(self, kind: Which) -> None:
        super().__init__(_TITLES.get(kind, kind), id=f"kind-{kind}", markup=False)
        self.kind = kind

    def show(self, count: int | None, wide: int, *, chosen: bool) -> None:
        title = _TITLES.get(self.kind, self.kind)
        color = _COLORS.get(self.kind, "") if count else "$text-muted"
        figure = "" if count is None else f" {count:>{wide},}"
        style = "bold underline $text-primary" if chosen else "$text-muted"
        self.update(Content.assemble((title, style), (figure, color)))

    def on_click(self) -> None:
        self.post_message(RowFilter.Chosen(self.kind))


class Words(SearchLine):
    """Words to look for; escape forgets them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="batch.search_leave"),
    ]

    def __init__(self) -> None:
        super().__init__(id="row-words", placeholder="/ words of an answer or error")

    def action_leave(self) -> None:
        self.value = ""
        self.screen.query_one("#rows-table").focus()


class RowFilter(Horizontal):
    """One line above the rows."""

    @dataclass
    class Chosen(Message):
        """Another kind of rows is wanted."""

        kind: Which

    def compose(self) -> ComposeResult:
        for kind in KINDS:
            yield Kind(kind)
        yield Words()

    def show(self, counts: Mapping[Which, int], chosen: Which) -> None:
        wide = len(f"{counts.get('all', 0):,}")
        for kind in self.query(Kind):
            kind.show(counts.get(kind.kind), wide, chosen=kind.kind == chosen)

    @on(Input.Submitted)
    def _to_rows(self) -> None:
        self.screen.query_one("#rows-table").focus()
