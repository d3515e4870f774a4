"""The rows of a job."""

from typing import ClassVar

from textual.binding import Binding, BindingType

from app.batch.watch.job import Job
from app.batch.watch.rows import RowState
from app.figures import rate
from app.openai.answer import Answer
from app.tui.widgets.table import Column, Table

_TEXT = 200  # characters of an answer
_NAMES = {
    RowState.WAITING: "waiting",
    RowState.RUNNING: "running",
    RowState.DONE: "done",
    RowState.EARLIER: "before",
    RowState.FAILED: "FAILED",
    RowState.INVALID: "INVALID",
}


class BatchTable(Table[int]):
    """Its records are the rows' indexes; ``job`` knows the rest."""

    HELP = """
    The rows of the job. `running` rows have a slot; `before` are answers of an earlier run, which
    are not computed again; `INVALID` rows were never asked. Tokens of prompt and answer are
    counted, speeds are tokens per second.
    """
    BINDING_GROUP_TITLE = "Rows"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Open row", id="batch.open"),
    ]

    def __init__(self, id: str | None = None) -> None:
        columns: tuple[Column[int], ...] = (
            Column("row", lambda i: f"{i:,}", 8, right=True),
            Column("state", lambda i: _NAMES[self._state(i)], 7),
            Column("prompt", lambda i: _count(self._answer(i), "prompt_tokens"), 6, right=True),
            Column("answer", lambda i: _count(self._answer(i), "completion_tokens"), 6, right=True),
            Column("prefill", lambda i: _speed(self._answer(i), "prefill_tps"), 7, right=True),
            Column("decode", lambda i: _speed(self._answer(i), "decode_tps"), 7, right=True),
            Column("", lambda i: _text(self._answer(i))),
        )
        super().__init__(columns, key=lambda index: index, id=id)
        self.job: Job | None = None

    def _state(self, index: int) -> RowState:
        return RowState.WAITING if self.job is None else self.job.state(index)

    def _answer(self, index: int) -> Answer:
        return (self.job and self.job.answer(index)) or Answer()

    def is_bad(self, record: int) -> bool:
        return self._state(record) in (RowState.FAILED, RowState.INVALID)


def _count(answer: Answer, name: str) -> str:
    value = (answer.usage or {}).get(name)
    return "" if value is None else f"{value:,}"


def _speed(answer: Answer, name: str) -> str:
    value = (answer.timings or {}).get(name)
    return "" if value is None else rate(value).removesuffix(" tok/s")


def _text(answer: Answer) -> str:
    if answer.error is not None:
        return f"{answer.error.code}: {answer.error.message}"
    return " ".join((answer.response or "")[:_TEXT].split())
