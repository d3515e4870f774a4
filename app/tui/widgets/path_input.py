"""A line for a path, with what it may become below it."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from app.chat.attachments import complete_path
from app.here import at_home
from app.tui.widgets.readline import Line


class _Line(Line):
    """Tab completes as far as it is clear; down goes to the list."""

    BINDING_GROUP_TITLE = "Path"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete the path", id="path.complete"),
        Binding("down", "list", "To the list", id="path.list"),
        Binding("enter", "submit", "Take it", id="path.take"),
    ]

    def action_complete(self) -> None:
        assert isinstance(self.parent, PathInput)
        self.parent.complete()

    def action_list(self) -> None:
        assert isinstance(self.parent, PathInput)
        self.parent.focus_list()


class PathInput(Vertical):
    """``Chosen`` when a file was typed or picked and enter pressed, ``Changed`` at every change."""

    @dataclass
    class Changed(Message):
        """The text is another one."""

        text: str

    @dataclass
    class Chosen(Message):
        """Enter was pressed on a path that is no folder."""

        text: str

    def __init__(self, value: str = "", *, placeholder: str = "", id: str | None = None) -> None:
        super().__init__(id=id)
        self._line = _Line(value, placeholder=placeholder, id="path-line")
        self._list = OptionList(id="path-list", markup=False)
        self._found: list[str] = []

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._list

    @property
    def path(self) -> Path:
        """What was typed, with ~ as the home folder."""
        return at_home(self.text)

    @property
    def text(self) -> str:
        return self._line.value.strip()

    @text.setter
    def text(self, value: str) -> None:
        self._line.value = value
        self._line.cursor_position = len(value)

    def focus_line(self) -> None:
        self._line.focus()

    def complete(self) -> None:
        """Add what all completions begin with; go to the next field when that is nothing."""
        shared = os.path.commonprefix(self._found)  # noqa: RUF071  (of characters)
        if len(shared) > len(self.text):
            self.text = shared
        else:
            self.screen.focus_next()

    def focus_list(self) -> None:
        if self._list.option_count:
            self._list.focus()
            self._list.highlighted = 0

    @on(Input.Changed)
    async def _changed(self, event: Input.Changed) -> None:
        event.stop()
        # A folder on a slow disk must not hold up the screen.
        self._found = await asyncio.to_thread(complete_path, event.value)
        if event.value != self._line.value:
            return
        only = [event.value] == self._found
        self._list.set_options([] if only else [Option(path) for path in self._found])
        self.post_message(self.Changed(event.value.strip()))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self.path.is_dir() and self.text:
            self.text = self.text.rstrip("/") + "/"
        elif self.text:
            self.post_message(self.Chosen(self.text))

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.text = str(event.option.prompt)
        self.focus_line()
