"""The rows of a job."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from app.batch.watch.follow import text_of
from app.batch.watch.job import WatchedJob
from app.batch.watch.rows import RowState
from app.figures import rate
from app.openai.answer import Answer
from app.tui.widgets.table import Table, TableColumn

_TEXT = 200  # characters of an answer
STATES = {
    RowState.WAITING: ("waiting", "quiet"),
    RowState.RUNNING: ("running", "running"),
    RowState.DONE: ("done", "done"),
    RowState.EARLIER: ("before", "quiet"),
    RowState.FAILED: ("failed", "failed"),
    RowState.INVALID: ("invalid", "failed"),
}


class BatchTable(Table[int]):
    """Its records are the rows' indexes; ``job`` knows the rest."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "batch-table--quiet",
        "batch-table--running",
        "batch-table--done",
        "batch-table--failed",
    }
    HELP = """
    The rows of the job. `running` rows have a slot; `before` are answers of an earlier run, which
    are not computed again; `invalid` rows were never asked. Tokens of prompt and answer are
    counted, tok/s is the speed of the answer. **[batch.sort alt+s]** sorts by the next column
    and **[batch.turn alt+u]** turns the order round, as does a click on a column's title.
    """
    BINDING_GROUP_TITLE = "Rows"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Open", id="batch.open"),
    ]

    def __init__(self, id: str | None = None) -> None:
        columns: tuple[TableColumn[int], ...] = (
            TableColumn("row", lambda i: self._quiet(f"{i:,}"), 9, right=True, name="row"),
            TableColumn("state", self._state_cell, 7, name="state"),
            TableColumn("prompt", lambda i: self._count(i, "prompt_tokens"), 7, True, "prompt"),
            TableColumn("answer", lambda i: self._count(i, "completion_tokens"), 7, True, "answer"),
            TableColumn("tok/s", self._speed, 7, True, "speed"),
            TableColumn("", self._text),
        )
        super().__init__(columns, key=lambda index: index, id=id)
        self.job: WatchedJob | None = None

    def show(self, rows: Sequence[int], *, keep: bool = True) -> None:
        """Other rows; with ``keep`` the cursor stays on its row, however far that has moved."""
        before = self.record
        super().show(rows, keep=keep)
        if keep and before is not None and self.record != before and before in rows:
            self._put(rows.index(before))

    def _state(self, index: int) -> RowState:
        return RowState.WAITING if self.job is None else self.job.state(index)

    def _answer(self, index: int) -> Answer:
        return (self.job and self.job.answer(index)) or Answer()

    def _quiet(self, text: str) -> Text:
        return self._styled(text, "quiet")

    def _styled(self, text: str, how: str) -> Text:
        return Text(text, self.get_component_rich_style(f"batch-table--{how}", partial=True))

    def _state_cell(self, index: int) -> Text:
        return self._styled(*STATES[self._state(index)])

    def _count(self, index: int, name: str) -> Text:
        value = (self._answer(index).usage or {}).get(name)
        return self._quiet("" if value is None else f"{value:,}")

    def _speed(self, index: int) -> str:
        value = (self._answer(index).timings or {}).get("decode_tps")
        return "" if value is None else rate(value).removesuffix(" tok/s")

    def _text(self, index: int) -> Text:
        answer = self._answer(index)
        text = " ".join(text_of(answer)[:_TEXT].split())
        return Text(text) if answer.error is None else self._styled(text, "failed")
