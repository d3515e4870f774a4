"""The line below a message: which model, which of its branches, and what the answer cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Label, ProgressBar

from app.chat.figures import FEW, Reading, StatusFigures
from app.chat.store.records import Message
from app.figures import duration, rate

_ENDINGS = {
    "stop": "stop",
    "length": "maximum length",
    "context": "context full",
    "deadline": "time was up",
    "cancelled": "stopped",
    "error": "failed",
}
_BETWEEN = 3  # columns between groups
_NAME = 4  # its rank


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of an answer. Of the facts that do not fit, those of the highest rank go first."""

    text: str
    rank: int
    style: str = ""


class MessageFoot(Widget):
    """``show`` it; one row."""

    def __init__(self, message: int) -> None:
        """``message``: the number of the one above it."""
        super().__init__()
        self._message = message
        self._model = ""
        self._branch = (1, 1)
        self._facts: Sequence[Fact] = ()

    def show(self, name: str, branch: tuple[int, int], facts: Sequence[Fact]) -> None:
        """``branch``: its number (from 1) and how many there are."""
        self.display = branch[1] > 1 or bool(name or facts)
        new = (name, branch, facts)
        if new != (self._model, self._branch, self._facts):
            self._model, self._branch, self._facts = new
            self.refresh()

    def render(self) -> Content:
        width, (index, count) = self.size.width, self._branch
        before, after = clickable("◂ ", "branch(-1)"), clickable(" ▸", "branch(1)")
        marks = Content.assemble(before, f"{index}/{count}", after) if count > 1 else Content()
        taken = marks.cell_length + _BETWEEN if marks else 0
        name, facts = fitting(self._model, self._facts, width - taken)
        told = Content(" · ").join(Content.styled(fact.text, fact.style) for fact in facts)
        right = Content(" " * _BETWEEN).join(filter(None, (marks, told)))
        left = Content.styled(name, "$text-muted")
        gap = max(0, width - left.cell_length - right.cell_length)
        return Content.assemble(left, " " * gap, right)

    def action_branch(self, step: int) -> None:
        """By the screen: this widget is taken away with its message."""
        self.screen.call_later(self.screen.run_action, f"branch({step}, {self._message})")


def clickable(text: str, action: str, style: str = "") -> Content:
    """``text`` that runs an action when it is clicked."""
    return Content.styled(text, style).stylize(Style.from_meta({"@click": action}))


def fitting(name: str, facts: Sequence[Fact], width: int) -> tuple[str, list[Fact]]:
    """``name`` and those of ``facts`` that fit into ``width`` columns."""
    kept = list(facts)
    while True:
        needed = sum(cell_len(fact.text) for fact in kept) + 3 * max(0, len(kept) - 1)
        if name and needed + _BETWEEN + cell_len(name) > width:
            rank = max((fact.rank for fact in kept), default=0)
            if rank < _NAME:
                name = ""
                continue
        elif needed <= width or not kept:
            return name, kept
        kept.remove(max(kept, key=lambda fact: fact.rank))


def facts_of(message: Message) -> tuple[Fact, ...]:
    """Figures of an answer that has ended; empty when it has none."""
    figures, found = message.figures, list[Fact]()
    if figures is None:
        return ()
    if figures.decode_tps is not None:
        found.append(Fact(rate(figures.decode_tps), 0))
    if figures.completion_tokens:
        found.append(Fact(f"first token {duration(figures.ttft_s)}", 3))
    computed = figures.prompt_tokens - figures.cached_tokens
    if figures.prefill_tps is not None and computed >= FEW:
        found.append(Fact(f"prefill {rate(figures.prefill_tps)} ({computed:,} tokens)", 5))
    elif figures.cached_tokens:
        cached = f"{figures.cached_tokens:,}" if computed > 0 else "all"
        found.append(Fact(f"prompt {tokens(figures.prompt_tokens)}, {cached} cached", 5))
    found.append(Fact(tokens(figures.completion_tokens), 1))
    found.append(Fact(_ENDINGS.get(figures.finish_reason, figures.finish_reason), 2))
    return tuple(found)


def live_facts(figures: StatusFigures, count: int) -> tuple[Fact, ...]:
    """Figures of an answer of ``count`` tokens that is being written."""
    if figures.ttft_s is None:
        return ()
    found = [Fact(f"first token {duration(figures.ttft_s)}", 3), Fact(tokens(count), 1)]
    if figures.decode_tps is not None:
        found.insert(0, Fact(rate(figures.decode_tps), 0, "bold $text-primary"))
    return tuple(found)


def tokens(count: int) -> str:
    """A count in words."""
    return f"{count:,} token{'' if count == 1 else 's'}"


# What stands where an answer will stand: how far the prompt is read, and when it will be done.


class Waiting(Horizontal):
    """``show`` it what the answer waits for."""

    def __init__(self, what: str | Reading) -> None:
        super().__init__()
        self._what = what
        self._said = Label(classes="said", markup=False)
        self._bar = ProgressBar(show_percentage=False, show_eta=False)
        self._left = Label(classes="left", markup=False)

    def compose(self) -> ComposeResult:
        yield self._said
        yield self._bar
        yield self._left

    def on_mount(self) -> None:
        self.show(self._what)

    def show(self, what: str | Reading) -> None:
        self._what = what
        if not self.is_mounted:
            return
        self._bar.display = self._left.display = isinstance(what, Reading)
        if isinstance(what, Reading):
            self._bar.update(total=what.total, progress=what.read)
            self._left.update("" if what.left_s is None else f"{left(what.left_s)} left")
            read = f"{what.read:>{len(f'{what.total:,}')},}"
            self._said.update(f"Reading {read} of {what.total:,} tokens")
        else:
            self._said.update(what[:1].upper() + what[1:])


def left(seconds: float) -> str:
    """In whole seconds: what is estimated has no tenths."""
    return "less than 1 s" if seconds < 1 else duration(math.ceil(seconds)).replace(".0 s", " s")
