"""Forms and their fields: a path with completion, and a box to tick."""

import asyncio
from abc import abstractmethod
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.suggester import Suggester
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Label

from app.chat.attachments import complete_path

_SETTLE_S = 0.3  # without a change before a form is looked at


class _Paths(Suggester):
    """The first folder, or file whose name ends with ``suffix`` (None: no file), that begins with
    what is typed."""

    def __init__(self, suffix: str | None) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._suffix = suffix

    async def get_suggestion(self, value: str) -> str | None:
        """Looked up in a thread: a folder may lie on a slow disk."""
        found = await asyncio.to_thread(complete_path, value) if value else []
        return next((path for path in found if path != value and self._takes(path)), None)

    def _takes(self, path: str) -> bool:
        return path.endswith("/") or (self._suffix is not None and path.endswith(self._suffix))


class PathLine(Input):
    """A line in which tab takes the suggested path, and leaves it where there is none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete the path", id="path.complete", show=False),
    ]

    def __init__(self, placeholder: str, id: str, suffix: str | None) -> None:
        super().__init__(placeholder=placeholder, id=id, compact=True, suggester=_Paths(suffix))

    def action_complete(self) -> None:
        """Take the suggestion, or go on."""
        before = self.value
        self.cursor_position = len(self.value)
        self.action_cursor_right()
        if self.value == before:
            self.screen.focus_next()


class Field(Horizontal):
    """A label and a line for a path; see ``_Paths`` for ``suffix``."""

    DEFAULT_CSS = """
    Field {
        height: 1;
        & > Label { width: 10; color: $text-muted; }
        & > PathLine { width: 1fr; background: $panel; }
        & > PathLine > .input--suggestion { text-style: italic; }
        & > PathLine > .input--placeholder { text-style: italic; }
    }
    """

    def __init__(self, label: str, placeholder: str, id: str, suffix: str | None = None) -> None:
        super().__init__()
        self._label = label
        self._line = PathLine(placeholder, id, suffix)

    def compose(self) -> ComposeResult:
        yield Label(self._label)
        yield self._line


class Check(Widget, can_focus=True):
    """``[x] text``: what is ticked can be seen without colour. Space, enter or a click toggle."""

    DEFAULT_CSS = """
    Check {
        width: auto;
        height: 1;
        margin-right: 2;
        &:focus { text-style: reverse; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "tick", "Tick", id="check.toggle", show=False),
    ]
    value: reactive[bool] = reactive(False)

    class Changed(Message):
        """It was ticked or cleared."""

    def __init__(self, text: str, *, value: bool, id: str) -> None:
        super().__init__(id=id)
        self._text = text
        self.set_reactive(Check.value, value)

    def render(self) -> RenderResult:
        return f"\\[{'x' if self.value else ' '}] {self._text}"

    def get_content_width(self, container: object, viewport: object) -> int:
        return len(self._text) + 4

    def action_tick(self) -> None:
        self.value = not self.value
        self.post_message(self.Changed())

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.focus()
        self.action_tick()


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
        self._waiting = self.set_timer(seconds, self._look)

    def _look(self) -> None:
        self.run_worker(self.look(), exclusive=True, group="look")

    def text_of(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value

    def fill(self, **values: str) -> None:
        """Put texts into lines."""
        for name, value in values.items():
            self.query_one(f"#{name}", Input).value = value

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.screen.focus_next()
