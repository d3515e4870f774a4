"""The rows of a job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, ProgressBar, Static

from app.batch.watch.follow import text_of
from app.batch.watch.job import JobView, Phase, WatchedJob
from app.batch.watch.rows import RowState, Which
from app.figures import rate
from app.openai.answer import Answer
from app.tui.widgets.prompt import SearchLine
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


_CELLS = 48  # of the strip; more slots than that share cells
# A job in a few lines: what it does, how far it is, what its slots do.


_BAD = frozenset({Phase.FAILED, Phase.DIED})
_WAIT = frozenset({Phase.PAUSED, Phase.PAUSING, Phase.STOPPED, Phase.STOPPING, Phase.ELSEWHERE})


class JobHeader(Vertical):
    """``show`` draws a job as it is now."""

    def __init__(self) -> None:
        super().__init__(classes="pane")

    def compose(self) -> ComposeResult:
        with Horizontal(id="job-progress"):
            yield ProgressBar(show_percentage=False, show_eta=False)
            yield Static(id="job-counts")
        yield Static(id="job-slots")
        yield Static(id="job-said", markup=False)

    def show(self, view: JobView, title: str) -> None:
        """``title`` is what it reads and writes."""
        self.border_title = Content(title)
        self.border_subtitle = Content(view.state)
        self.set_class(view.phase.active, "-running")
        self.set_class(view.phase in _BAD, "-failed")
        self.set_class(view.phase in _WAIT, "-waiting")
        self.set_class(view.phase is Phase.DONE, "-done")
        self.query_one(ProgressBar).update(total=view.rows or None, progress=view.done)
        self.query_one("#job-counts", Static).update(counts_of(view))
        self.query_one("#job-slots", Static).update(slots_of(view, self.size.width - 4))
        said = self.query_one("#job-said", Static)
        said.update("\n".join(view.lines or [" · ".join(view.notes)]))
        said.set_class(not (view.lines or view.notes), "-empty")


def counts_of(view: JobView) -> Content:
    """Rows, in as many columns whatever they are."""
    rows = f"{view.rows:,}"
    wide, share = len(rows), view.done / view.rows if view.rows else 0.0
    return Content.assemble(
        (f"{view.done:>{wide},}", "bold"),
        (f" of {rows}  ", "$text-muted"),
        (f"{view.failed:>{wide},} failed", "$text-error" if view.failed else "$text-muted"),
        (f"  {int(100 * share):>3}%", "bold"),
    )


def slots_of(view: JobView, room: int) -> Content:
    """A cell for each slot, then what they hold; the figures that there is room for."""
    parts: list[Content] = []
    if view.slots and view.phase.active:
        running = min(view.running or 0, view.slots)
        counts = (running - view.reading, view.reading, view.slots - running)
        wide = len(str(view.slots))
        parts.append(
            Content.assemble(
                ("Slots ", "$text-muted"),
                *strip_of(counts),
                (f" {view.slots}", ""),
                (f" · {counts[0]:>{wide}} decoding", "$text-muted"),
                (f" · {counts[1]:>{wide}} reading", "$text-muted"),
                (f" · {counts[2]:>{wide}} free", "$text-muted"),
            )
        )
    if view.kv_capacity and view.phase.active:
        parts.append(_figure("KV", f"{100 * (view.kv_tokens or 0) / view.kv_capacity:>3.0f}%"))
    if view.prompt_tokens:
        parts.append(
            _figure("prefix hits", f"{100 * view.cached_tokens / view.prompt_tokens:>3.0f}%")
        )
    if view.memory_bytes:
        parts.append(_figure("memory", f"{view.memory_bytes / 2**30:.2f} GiB"))
    elif view.prompt_tokens and not view.slots:
        parts.append(_figure("prompts", f"{view.prompt_tokens:,} tokens"))
        parts.append(_figure("answers", f"{view.completion_tokens:,} tokens"))
    if view.cached:
        parts.append(_figure("from before", f"{view.cached:,}"))
    line = Content("")
    for part in parts:
        longer = line + Content("   ") + part if line else part
        if longer.cell_length > room:
            break
        line = longer
    return line


def strip_of(counts: tuple[int, int, int]) -> list[tuple[str, str]]:
    """Cells of the slots that decode, read a prompt, and are free."""
    total = sum(counts)
    cells = min(total, _CELLS)
    ends = [round(sum(counts[: i + 1]) * cells / total) for i in range(3)]
    marks = (("■", "$text-primary"), ("▪", "$text-warning"), ("□", "$text-muted"))
    begins = (0, *ends[:2])
    return [
        (mark * (end - begin), style)
        for (mark, style), begin, end in zip(marks, begins, ends, strict=True)
    ]


def _figure(name: str, value: str) -> Content:
    return Content.assemble((f"{name} ", "$text-muted"), value)


# Which rows of a job are listed: kinds to choose among, and words to look for.


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
