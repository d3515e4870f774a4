"""Which part of a message to copy."""

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.tui.widgets.segments import Splitter, sections


@dataclass(frozen=True, slots=True)
class Copyable:
    """``label`` says what ``text`` is."""

    label: str
    text: str


def choices(text: str) -> list[Copyable]:
    """The whole message, then each of its blocks of code."""
    found = [Copyable("The whole message", text)]
    for section in sections(Splitter().feed(text, last=True)):
        if section.code:
            code, language = section.text, f", {section.language}" if section.language else ""
            lines = code.count("\n") + (not code.endswith("\n"))
            first = next((line.strip() for line in code.splitlines() if line.strip()), "")
            size = f"{lines} line{'s' if lines > 1 else ''}"
            label = f"Code {len(found)}{language}, {size}: {first}"
            found.append(Copyable(label, code.removesuffix("\n")))
    return found


class CopyChoice(ModalScreen[str | None]):
    """Ends with the text to copy, None when it was left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Back", id="copy.leave")]

    def __init__(self, offered: list[Copyable]) -> None:
        super().__init__(classes="panel")
        self._offered = offered

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Copy"
            box.border_subtitle = "enter copies · esc back"
            options = [
                Option(Content(one.label).truncate(70, ellipsis=True)) for one in self._offered
            ]
            yield OptionList(*options)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._offered[event.option_index].text)
