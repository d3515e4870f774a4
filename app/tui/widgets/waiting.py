"""What stands where an answer will stand: how far the prompt is read, and when it will be done."""

import math

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Label, ProgressBar

from app.chat.figures import Reading
from app.figures import duration


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

    @property
    def text(self) -> str:
        """What is said, as text."""
        return f"{self._said.visual} {self._left.visual}".strip()

    def show(self, what: str | Reading) -> None:
        self._what = what
        if not self.is_mounted:
            return
        reads = isinstance(what, Reading)
        self._bar.display = self._left.display = reads
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
