"""The row under the cursor, beside the table: what was asked, answered, and its figures."""

import asyncio
import logging
from itertools import zip_longest

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.batch.watch.job import WatchedJob
from app.batch.watch.preview import ShownRow, open_row
from app.batch.watch.rows import RowState

log = logging.getLogger(__name__)

_ROLES = {"user": "$text-primary", "assistant": "$text-success", "not finished": "$text-warning"}


_SETTLE_S = 0.1  # so long the cursor may move on before a row is read


class RowPane(VerticalScroll):
    """``follow`` shows a row, and again when something new is known of it."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, classes="pane", can_focus=False)
        self.border_title = "Row"
        self.row: ShownRow | None = None
        self._wanted: tuple[WatchedJob, int, RowState] | None = None
        self._reading = False

    def compose(self) -> ComposeResult:
        yield Static(id="row-text")

    def follow(self, job: WatchedJob, index: int | None) -> None:
        """Show this row once the cursor stays there."""
        wanted = None if index is None else (job, index, job.state(index))
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if wanted is None:
            self.row, self.border_title, self.border_subtitle = None, "Row", ""
            self.query_one("#row-text", Static).update("")
        elif not self._reading:
            self._reading = True
            self.run_worker(self._read(), group="row-pane", exit_on_error=False)

    async def _read(self) -> None:
        """One at a time: a row late in a large input takes a while."""
        try:
            shown = None
            await asyncio.sleep(_SETTLE_S)
            while (wanted := self._wanted) is not None and wanted != shown:
                row = await asyncio.to_thread(open_row, *wanted[:2])
                shown = wanted
                if self.is_attached:
                    self._show(row, wanted[2])
                await asyncio.sleep(_SETTLE_S)
        except Exception:
            log.exception("reading a row")
        finally:
            self._reading = False

    def _show(self, row: ShownRow, state: RowState) -> None:
        other = self.row is None or self.row.index != row.index
        self.row = row
        self.border_title = Content(f"Row {row.index:,} · {row.id}")
        self.border_subtitle = Content(row.where)
        self.query_one("#row-text", Static).update(conversation(row, state))
        if other:
            self.scroll_home(animate=False)


def conversation(row: ShownRow, state: RowState | None = None) -> Content:
    """Who said what, then what is wrong, and what it took."""
    parts = [_turn(role, text) for role, text in row.history]
    several = len(row.turns) > 1
    for turn, answer in zip_longest(row.turns, row.answers if several else ()):
        parts += [_turn("user", turn)] if turn is not None else []
        parts += [_turn("assistant", answer)] if answer is not None else []
    parts += [_turn("assistant", answer) for answer in (() if several else row.answers)]
    if row.partial:
        parts.append(_turn("not finished", row.partial))
    if row.error:
        parts.append(Content.styled(f"✗ {row.error}", "$text-error"))
    elif state is RowState.RUNNING and not row.answers:
        parts.append(Content.styled("it is being answered", "$text-primary"))
    elif not row.answers:
        parts.append(Content.styled("not answered yet", "$text-muted"))
    parts += [Content.styled(text, "$text-muted") for text in (row.figures, row.note) if text]
    return Content("\n\n").join(parts)


def _turn(role: str, text: str) -> Content:
    return Content.assemble((role, f"bold {_ROLES.get(role, '$text-muted')}"), "\n", text)
