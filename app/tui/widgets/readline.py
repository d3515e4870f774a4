"""Where one types, with the keys of readline: a line, a line that searches, and an area."""

import re
from typing import Any, ClassVar, cast

from textual import events
from textual.binding import Binding, BindingType
from textual.document._document import Document
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Input, TextArea

from app.tui.in_order import act

_WORD = re.compile(r"[^\W_]+")  # readline's: letters and digits
_SOLID = re.compile(r"\S+")


def _key(keys: str, action: str, title: str) -> Binding:
    return Binding(keys, action, title, show=False, id=f"text.{action}")


# Where Textual has others or none. Its ctrl+a, d, e, h, k and u are readline's, too.
_KEYS: list[BindingType] = [
    _key("ctrl+b,left", "cursor_left", "Character left"),
    _key("ctrl+f,right", "cursor_right", "Character right"),
    _key("alt+b,ctrl+left", "word_left", "Word left"),
    _key("alt+f,ctrl+right", "word_right", "Word right"),
    _key("alt+backspace,ctrl+backspace", "cut_word_left", "Delete the word to the left"),
    _key("alt+d,alt+delete", "cut_word_right", "Delete the word to the right"),
    _key("ctrl+w", "cut_to_blank", "Delete to the blank to the left"),
]


def left_of(text: str, at: int, word: re.Pattern[str] = _WORD) -> int:
    """Where the word begins that ``at`` is in or behind."""
    return max((found.start() for found in word.finditer(text, 0, at)), default=0)


def right_of(text: str, at: int) -> int:
    """Where the word ends that ``at`` is in or before."""
    found = _WORD.search(text, at)
    return found.end() if found else len(text)


class _Readline:
    """What the keys do, by where the cursor is in the whole text."""

    async def _on_key(self, event: events.Key) -> None:
        """What is bound acts at once, and where that has nothing to do, as paging a line, it is
        left to the screen. Textual calls the handler of its own widget next."""
        if not event.is_printable and await act(cast(Widget, self).app, event.key):
            event.stop()
            event.prevent_default()
        elif event.key.startswith("alt+"):  # not text, though a terminal may send a letter with it
            event.prevent_default()

    def spot(self) -> tuple[str, int]:
        """The text, and where the cursor is in it."""
        raise NotImplementedError

    def go(self, to: int) -> None:
        """Put the cursor there."""
        raise NotImplementedError

    def cut(self, to: int) -> None:
        """Delete from the cursor to there; what is selected instead, if anything is."""
        raise NotImplementedError

    def action_word_left(self) -> None:
        self.go(left_of(*self.spot()))

    def action_word_right(self) -> None:
        self.go(right_of(*self.spot()))

    def action_cut_word_left(self) -> None:
        self.cut(left_of(*self.spot()))

    def action_cut_word_right(self) -> None:
        self.cut(right_of(*self.spot()))

    def action_cut_to_blank(self) -> None:
        self.cut(left_of(*self.spot(), _SOLID))


class Line(_Readline, Input):
    """One line, as a rule without a border."""

    BINDINGS: ClassVar[list[BindingType]] = _KEYS
    # From the beginning: Textual would style each line three times.
    DEFAULT_CLASSES = "-textual-compact"
    compact = reactive(True, toggle_class=DEFAULT_CLASSES)

    def __init__(self, *texts: Any, compact: bool = True, **named: Any) -> None:
        super().__init__(*texts, compact=compact, **named)

    def spot(self) -> tuple[str, int]:
        return self.value, self.cursor_position

    def go(self, to: int) -> None:
        self.cursor_position = to

    def cut(self, to: int) -> None:
        if self.selection.is_empty:
            self.delete(*sorted((self.cursor_position, to)))
        else:
            self.delete_selection()


class SearchLine(Line):
    """A line above a list. Keys that would do nothing in it are the list's: home and end while it
    is empty, and those that delete to the right while nothing is there."""

    _own: tuple[bool, bool] = (False, False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        text, right = self._keeps()
        return {"home": text, "end": text, "delete_right": right}.get(action, True)

    def _keeps(self) -> tuple[bool, bool]:
        """Whether it has text, and whether any of it could be deleted to the right."""
        text, at = self.spot()
        return bool(text), at < len(text) or not self.selection.is_empty

    def watch_selection(self) -> None:
        """Hints tell what keys do now. With text, the cursor moves."""
        if self._own != (now := self._keeps()):
            self._own = now
            self.refresh_bindings()

    watch_value = watch_selection


class Area(_Readline, TextArea):
    """Several lines."""

    BINDINGS: ClassVar[list[BindingType]] = _KEYS

    def spot(self) -> tuple[str, int]:
        return self.text, self._plain.get_index_from_location(self.cursor_location)

    @property
    def _plain(self) -> Document:
        assert isinstance(self.document, Document)  # the only kind that Textual has
        return self.document

    def go(self, to: int) -> None:
        self.move_cursor(self._plain.get_location_from_index(to))

    def cut(self, to: int) -> None:
        start, end = self.selection
        if start == end:
            start = self._plain.get_location_from_index(to)
        self._delete_via_keyboard(start, end)
