"""Forms and their fields: lines of texts, paths with completion, and boxes to tick."""

import asyncio
from abc import abstractmethod
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Checkbox, Input, Label

from app.chat.attachments import complete_path

_SETTLE_S = 0.3  # without a change before a form is looked at


class _Paths(Suggester):
    """The first folder, or file whose name ends with ``suffix`` (None: no file), that begins with
    what is typed."""

    def __init__(self, suffix: str | None) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._suffixes = ("/",) if suffix is None else ("/", suffix)

    async def get_suggestion(self, value: str) -> str | None:
        """Looked up in a thread: a folder may lie on a slow disk."""
        found = await asyncio.to_thread(complete_path, value) if value else []
        return next((p for p in found if p != value and p.endswith(self._suffixes)), None)


class PathLine(Input):
    """A line in which tab takes the suggested path, and leaves it where there is none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete the path", id="path.complete", show=False),
    ]

    def action_complete(self) -> None:
        """Take the suggestion, or go on."""
        before = self.value
        self.cursor_position = len(self.value)
        self.action_cursor_right()
        if self.value == before:
            self.screen.focus_next()


def path_line(label: str, placeholder: str, name: str, suffix: str | None = None) -> Horizontal:
    """A label and a line for a path; see ``_Paths`` for ``suffix``."""
    entry = PathLine(placeholder=placeholder, id=name, compact=True, suggester=_Paths(suffix))
    return Horizontal(Label(label), entry, classes="form-line form-path")


def line(*fields: tuple[str, str, str], wide: int) -> Horizontal:
    """Fields beside each other, each with its name, label and placeholder; the first label takes
    ``wide`` columns."""
    parts: list[Widget] = []
    for name, label, placeholder in fields:
        parts.append(Label(label if parts else label.ljust(wide)))
        parts.append(Input(placeholder=placeholder, id=name, compact=True))
    return Horizontal(*parts, classes="form-line")


class Check(Checkbox):
    """``[x] text``: what is ticked can be seen without colour. Space, enter or a click toggle."""

    BUTTON_LEFT, BUTTON_INNER, BUTTON_RIGHT = "", "[ ]", ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "toggle_button", "Tick", id="check.toggle", show=False),
    ]

    def __init__(self, text: str, *, value: bool, id: str) -> None:
        super().__init__(text, value, id=id, compact=True)

    def watch_value(self) -> None:
        self.BUTTON_INNER = "[x]" if self.value else "[ ]"
        super().watch_value()


class Form(Vertical):
    """Lines and boxes; ``look`` is called once the user pauses."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._waiting: Timer | None = None

    @abstractmethod
    async def look(self) -> None:
        """Show what the form asks for now."""

    def look_later(self, seconds: float = _SETTLE_S) -> None:
        """Look when that time has gone by without another call."""
        if self._waiting is not None:
            self._waiting.stop()
        self._waiting = self.set_timer(
            seconds, lambda: self.run_worker(self.look(), exclusive=True, group="look")
        )

    def text_of(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value

    def fill(self, **values: str) -> None:
        """Put texts into lines."""
        for name, value in values.items():
            self.query_one(f"#{name}", Input).value = value

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.screen.focus_next()
