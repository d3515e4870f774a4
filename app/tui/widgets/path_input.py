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


class _Line(Input):
    """Tab completes as far as it is clear; down goes to the list."""

    BINDING_GROUP_TITLE = "Path"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "Complete the path", id="path.complete"),
        Binding("down", "list", "To the list", id="path.list"),
    ]

    def action_complete(self) -> None:
        """What all completions begin with; the next field when there is nothing to add."""
        parent = self.parent
        assert isinstance(parent, PathInput)
        if not parent.complete():
            self.screen.focus_next()

    def action_list(self) -> None:
        found = self.screen.query_one("#path-list", OptionList)
        if found.option_count:
            found.focus()
            found.highlighted = 0


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
        self._value = value
        self._placeholder = placeholder
        self._found: list[str] = []

    def compose(self) -> ComposeResult:
        yield _Line(self._value, placeholder=self._placeholder, id="path-line")
        yield OptionList(id="path-list")

    @property
    def path(self) -> Path:
        """What was typed, with ~ as the home folder."""
        return Path(self.text).expanduser()

    @property
    def text(self) -> str:
        return self.query_one("#path-line", Input).value.strip()

    @text.setter
    def text(self, value: str) -> None:
        line = self.query_one("#path-line", Input)
        line.value = value
        line.cursor_position = len(value)

    def focus_line(self) -> None:
        self.query_one("#path-line", Input).focus()

    def complete(self) -> bool:
        """Add what all completions share; False when that is nothing."""
        shared = os.path.commonprefix(self._found)  # noqa: RUF071  (of characters)
        if len(shared) <= len(self.text):
            return False
        self.text = shared
        return True

    @on(Input.Changed)
    async def _changed(self, event: Input.Changed) -> None:
        event.stop()
        # A folder on a slow disk must not hold up the screen.
        self._found = await asyncio.to_thread(complete_path, event.value)
        if event.value != self.query_one("#path-line", Input).value:
            return
        found = self.query_one("#path-list", OptionList)
        only = [event.value] == self._found
        found.set_options([] if only else [Option(path) for path in self._found])
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
