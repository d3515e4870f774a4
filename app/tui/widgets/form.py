"""Forms and their fields: lines of text, paths with completion, boxes to tick; in groups, with what
is wrong under the field that has it.

A form yields ``Group``s of ``Field``s, and a ``FieldHelp`` where the help of the field with the
focus is to stand. ``Form.refuse`` marks a field; the mark goes as soon as its value changes.
"""

import asyncio
import os
from abc import abstractmethod
from pathlib import Path

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Checkbox, Input, OptionList, Static
from textual.widgets.option_list import Option

from app.chat.attachments import complete_path
from app.here import at_home
from app.tui.keys import bind, quiet
from app.tui.textual_patches import Pane, Plain, latest
from app.tui.widgets.prompt import Line

_LABEL = 12  # cells; form.tcss has the entry beside it
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


class PathLine(Line):
    """A line in which tab takes the suggested path, and leaves it where there is none."""

    BINDINGS = [quiet("tab", "path.complete", "Complete the path")]

    def action_complete(self) -> None:
        """Take the suggestion, or go on."""
        before = self.value
        self.cursor_position = len(self.value)
        self.action_cursor_right()
        if self.value == before:
            self.screen.focus_next()


class Check(Checkbox):
    """``[x] text``: what is ticked can be seen without colour. Space, enter or a click toggle."""

    BUTTON_LEFT, BUTTON_INNER, BUTTON_RIGHT = "", "[ ]", ""
    BINDINGS = [quiet("space,enter", "check.toggle", "Tick", action="toggle_button")]

    DEFAULT_CLASSES = "-textual-compact"  # see ``Line``
    compact = reactive(True, toggle_class=DEFAULT_CLASSES)

    def __init__(self, text: str, *, value: bool, id: str) -> None:
        super().__init__(text, value, id=id, compact=True)

    def watch_value(self) -> None:
        self.BUTTON_INNER = "[x]" if self.value else "[ ]"
        super().watch_value()


class Field(Vertical):
    """A label, where one types or chooses, and under that what is wrong with it. A click on the
    label goes there too. ``about`` is its help, in one line."""

    def __init__(self, label: str, entry: Widget, about: str = "") -> None:
        super().__init__(name=entry.id)
        self.label, self.entry, self.about = label, entry, about
        self.error = ""
        self._said: Static | None = None

    def compose(self) -> ComposeResult:
        yield self.entry

    def render(self) -> Content:
        """The label, on the right of what is left of the entry."""
        return Content(self.label.rjust(_LABEL))

    def refuse(self, error: str) -> None:
        """Say what is wrong; nothing when ``error`` is empty."""
        if error == self.error:
            return
        self.error = error
        self.set_class(bool(error), "-wrong")
        if self._said is not None:
            self._said.update(f"✗ {error}")
        else:
            self._said = Plain(f"✗ {error}", classes="field-error")
            self.mount(self._said)
        self.refresh_bindings()

    @on(Input.Changed)
    @on(Checkbox.Changed)
    def _mended(self) -> None:
        self.refuse("")

    def on_click(self, event: events.Click) -> None:
        if event.widget is self:
            self.entry.focus()


def text_field(name: str, label: str, placeholder: str = "", about: str = "") -> Field:
    """For a text or a number."""
    return Field(label, Line(placeholder=placeholder, id=name), about)


def path_field(
    name: str, label: str, placeholder: str = "", about: str = "", suffix: str | None = None
) -> Field:
    """For a path; see ``_Paths`` for ``suffix``."""
    entry = PathLine(placeholder=placeholder, id=name, suggester=_Paths(suffix))
    return Field(label, entry, about)


class Group(Pane):
    """Fields that belong together, in a border with a title."""


class FieldHelp(Plain):
    """One line: the help of the field that has the focus."""


class Form(Vertical):
    """Fields and boxes; ``look`` is called once the user pauses."""

    BINDINGS = [bind("alt+n", "form.next_error", "Next error")]

    @abstractmethod
    async def look(self) -> None:
        """Show what the form asks for now."""

    @latest
    async def look_later(self, seconds: float | None = None) -> None:
        """Look when that time has gone by without another call, 0.3 s by default."""
        await asyncio.sleep(_SETTLE_S if seconds is None else seconds)
        await self.look()

    def text_of(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value

    def fill(self, **values: str) -> None:
        """Put texts into lines."""
        for name, value in values.items():
            self.query_one(f"#{name}", Input).value = value

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.screen.focus_next()

    # What is wrong

    @property
    def errors(self) -> dict[str, str]:
        """Errors by the names of their fields, in the order of the form."""
        return {str(field.name): field.error for field in self.query(Field) if field.error}

    def refuse(self, name: str, error: str) -> None:
        """Say under a field what is wrong with it; nothing when ``error`` is empty."""
        self.refuse_all(self.errors | {name: error})

    def refuse_all(self, errors: dict[str, str]) -> None:
        """Mark these errors, and no others."""
        for field in self.query(Field):
            field.refuse(errors.get(str(field.name), ""))

    def action_next_error(self) -> None:
        """Go to the next field with an error, from the one that has the focus."""
        fields = list(self.query(Field))
        at = next((i for i, one in enumerate(fields, 1) if one.entry.has_focus), 0)
        found = next((one for one in fields[at:] + fields[:at] if one.error), None)
        if found is not None:
            self.screen.set_focus(found.entry)  # before the next letter comes

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return bool(self.errors) if action == "next_error" else True

    @on(events.DescendantFocus)
    def _help(self, event: events.DescendantFocus) -> None:
        field = next((n for n in event.widget.ancestors if isinstance(n, Field)), None)
        for line in self.query(FieldHelp):
            line.update(field.about if field else "")


# A line for a path, with what it may become below it.


class _Line(Line):
    """Tab completes as far as it is clear; down goes to the list."""

    BINDING_GROUP_TITLE = "Path"
    BINDINGS = [
        bind("tab", "path.complete", "Complete the path"),
        bind("down", "path.list", "To the list"),
        bind("enter", "path.take", "Take it", action="submit"),
    ]

    def action_complete(self) -> None:
        self.query_ancestor(PathInput).complete()

    def action_list(self) -> None:
        self.query_ancestor(PathInput).focus_list()


class PathInput(Vertical):
    """``Input.Changed`` goes on from here once it is known how the path may go on,
    ``Input.Submitted`` unless it is a folder's, into which enter goes."""

    def __init__(self, value: str, *, placeholder: str) -> None:
        super().__init__()
        self._line = _Line(value, placeholder=placeholder, id="path-line")
        self._list = OptionList(id="path-list", markup=False)
        self._found: list[str] = []

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._list

    @property
    def path(self) -> Path:
        """The path as typed, with ~ as the home folder."""
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
        # A folder on a slow disk must not hold up the screen.
        self._found = await asyncio.to_thread(complete_path, event.value)
        if event.value != self._line.value:
            event.stop()
            return
        only = [event.value] == self._found
        self._list.set_options([] if only else [Option(path) for path in self._found])

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        folder = self.path.is_dir()
        if folder or not self.text:
            event.stop()
        if folder and self.text:
            self.text = self.text.rstrip("/") + "/"

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.text = str(event.option.prompt)
        self.focus_line()
