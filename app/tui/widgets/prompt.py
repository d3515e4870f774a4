"""Lines and areas to type in, with readline's keys; the prompt, in which enter sends, ctrl+j is a
new line and a paste of many lines stays text; and the commands that fit what was typed after a
slash."""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.document._document import Document
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Input, Static, TextArea

from app.chat.slash import SlashChoice
from app.tui.keys import bind, quiet, told
from app.tui.textual_patches import act
from app.tui.widgets.welcome import Starter

_WORD = re.compile(r"[^\W_]+")  # readline's: letters and digits
# Where one types, with the keys of readline: a line, a line that searches, and an area.


_SOLID = re.compile(r"\S+")


# Where Textual has others or none. Its ctrl+a, d, e, h, k and u are readline's, too.
_KEYS: list[BindingType] = [
    quiet("ctrl+b,left", "text.cursor_left", "Character left"),
    quiet("ctrl+f,right", "text.cursor_right", "Character right"),
    quiet("alt+b,ctrl+left", "text.word_left", "Word left"),
    quiet("alt+f,ctrl+right", "text.word_right", "Word right"),
    quiet("alt+backspace,ctrl+backspace", "text.cut_word_left", "Delete the word to the left"),
    quiet("alt+d,alt+delete", "text.cut_word_right", "Delete the word to the right"),
    quiet("ctrl+w", "text.cut_to_blank", "Delete to the blank to the left"),
]


def left_of(text: str, at: int, word: re.Pattern[str] = _WORD) -> int:
    """The beginning of the word that ``at`` is in or behind."""
    return max((found.start() for found in word.finditer(text, 0, at)), default=0)


def right_of(text: str, at: int) -> int:
    """The end of the word that ``at`` is in or before."""
    found = _WORD.search(text, at)
    return found.end() if found else len(text)


class _Readline:
    """A mixin: readline's keys, by where the cursor is in the whole text."""

    async def _on_key(self, event: events.Key) -> None:
        """Do at once what a key is bound to; where that has nothing to do, as paging a line, leave
        the key to the screen. Textual calls the handler of its own widget next."""
        if not event.is_printable and await act(cast(Widget, self).app, event.key):
            event.stop()
            event.prevent_default()
        elif event.key.startswith("alt+"):  # not text, though a terminal may send a letter with it
            event.prevent_default()

    @abstractmethod
    def spot(self) -> tuple[str, int]:
        """The text, and where the cursor is in it."""

    @abstractmethod
    def go(self, to: int) -> None:
        """Put the cursor there."""

    @abstractmethod
    def cut(self, to: int) -> None:
        """Delete from the cursor to there; what is selected instead, if anything is."""

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

    BINDINGS = _KEYS
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

    BINDINGS = _KEYS

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


_MOST = 8


class SlashMenu(Static):
    """Above the prompt; hidden when there is nothing to say. ``move`` marks one of what it offers,
    and shows those around it; a click takes one."""

    def __init__(self) -> None:
        super().__init__()
        self._commands: Sequence[SlashChoice] = ()
        self._top = 0
        self.marked: int | None = None  # the number of one, once one has moved
        self.clicked: Callable[[], None] | None = None  # called when one was, and is marked

    def offer(self, commands: Sequence[SlashChoice]) -> None:
        self._commands, self._top, self.marked = commands, 0, None
        self.set_class(bool(commands), "-shown")
        self.remove_class("-error")
        self._say()

    def move(self, step: int) -> bool:
        """Mark the one above or below, at the ends the one at the other end; False when nothing is
        offered."""
        count = len(self._commands)
        if not count:
            return False
        start = self.marked if self.marked is not None else (-1 if step > 0 else 0)
        self.marked = (start + step) % count
        self._top = min(max(self._top, self.marked - _MOST + 1), self.marked)
        self._say()
        return True

    def take(self) -> str | None:
        """The text of the marked one, for the prompt; None when none is marked."""
        return None if self.marked is None else self._commands[self.marked].text

    @property
    def _in_sight(self) -> Sequence[SlashChoice]:
        return self._commands[self._top : self._top + _MOST]

    def _say(self) -> None:
        shown = self._in_sight
        width = max((len(one.shown) for one in self._commands), default=0)
        lines = []
        for number, one in enumerate(shown, self._top):
            mark, style = ("▸ ", "bold reverse") if number == self.marked else ("  ", "bold")
            name = (one.shown.ljust(width), style)
            lines.append(Content.assemble(mark, name, "  ", (one.about, "$text-muted")))
        if len(self._commands) > _MOST:
            last = self._top + len(shown)
            lines.append(Content(f"  {self._top + 1}-{last} of {len(self._commands)}: ↑ ↓ move"))
        self.update(Content("\n").join(lines))

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is not None and at.y < len(self._in_sight) and self.clicked is not None:
            self.marked = self._top + at.y
            self.clicked()

    def on_mouse_scroll_down(self) -> None:
        self._scroll(1)

    def on_mouse_scroll_up(self) -> None:
        self._scroll(-1)

    def _scroll(self, step: int) -> None:
        self._top = max(min(self._top + step, len(self._commands) - _MOST), 0)
        self._say()

    def error(self, text: str) -> None:
        self._commands, self.marked = (), None
        self.add_class("-shown", "-error")
        self.update(Content.assemble(("! ", "bold $text-error"), (text, "$text-error")))

    def hide(self) -> None:
        self._commands, self.marked = (), None
        self.remove_class("-shown")


_PLACEHOLDER = "Write a message; / for commands, [app.help F1] for help"


class PromptHistory:
    """Earlier prompts, newest first, walked through as in a shell. What was typed before
    walking back is kept at the end."""

    def __init__(self, prompts: Iterable[str] = ()) -> None:
        self._prompts = list(prompts)
        self._typed = ""
        self.reset()

    def add(self, prompt: str) -> None:
        """The newest; an older one like it goes."""
        self._prompts = [prompt, *(old for old in self._prompts if old != prompt)]
        self.reset()

    def reset(self) -> None:
        """Begin at the newest again: what is in the prompt was typed."""
        self._at = -1

    def step(self, now: str, older: bool) -> str | None:
        """The prompt before (``older``) or after the one shown; None when there is none. ``now`` is
        what the prompt holds."""
        if self._at >= 0 and now != self._prompts[self._at]:
            self.reset()  # one that was changed counts as typed
        target = self._at + (1 if older else -1)
        if not -1 <= target < len(self._prompts):
            return None
        if self._at == -1:
            self._typed = now
        self._at = target
        return self._typed if target == -1 else self._prompts[target]


class Prompt(Area):
    """Grows to ten lines. Earlier prompts with up and down at its first and last line."""

    HELP = """
    Write a message. **[chat.send enter]** sends it, **[chat.newline ctrl+j, alt+enter]** begins a
    new line (also shift+enter where the terminal tells it apart). Pasted lines are not sent.
    **[chat.older up]** and **[chat.newer down]** at the first and last line walk through earlier
    prompts. A **/** at the beginning offers commands: these keys move among them,
    **[chat.send enter]** takes the marked one, **[chat.complete tab]** completes them.
    """
    BINDINGS = [
        bind("enter", "chat.send", "Send"),
        bind("ctrl+j,shift+enter,alt+enter", "chat.newline", "New line", action="new_line"),
        quiet("up", "chat.older", "Earlier prompt"),
        quiet("down", "chat.newer", "Later prompt"),
        quiet("ctrl+up", "chat.select", "Select a message", action="screen.select_last"),
        quiet("tab", "chat.complete", "Complete a command"),
    ]

    @dataclass
    class Sent(Message):
        """Enter was pressed on a text that is not blank."""

        text: str

    def __init__(self, menu: SlashMenu | None = None) -> None:
        """``menu``: what is offered for what is typed; up and down move in it, enter takes it."""
        super().__init__(highlight_cursor_line=False, placeholder=_PLACEHOLDER)
        self.earlier = PromptHistory()
        self._menu = menu or SlashMenu()  # one that is not shown offers nothing
        self._menu.clicked = self.action_send
        self.recall: Callable[[], bool] | None = None  # what up does first in an empty prompt

    async def _on_key(self, event: events.Key) -> None:
        """Textual calls those of the classes above next."""
        if event.key == "backspace" and not self.text:
            await self.run_action("screen.detach(-1)")

    def on_mount(self) -> None:
        if self.placeholder == _PLACEHOLDER:
            self.placeholder = told(self, _PLACEHOLDER)

    def action_send(self) -> None:
        """Hand the text on. What is typed next is not part of it, so the prompt is empty now."""
        marked = self._menu.take()
        if marked is not None:
            self.fill(marked)
            if marked.endswith(" "):  # it needs a word more
                return
        if self.text.strip():
            self.post_message(self.Sent(self.text))
            self.fill("")

    def action_new_line(self) -> None:
        self._replace_via_keyboard("\n", *self.selection)

    def action_older(self) -> None:
        if self._menu.move(-1):
            return
        if not self.text and self.recall is not None and self.recall():
            return
        if not (self.cursor_at_first_line and self._walk(older=True)):
            self.action_cursor_up()

    def action_newer(self) -> None:
        if self._menu.move(1):
            return
        if not (self.cursor_at_last_line and self._walk(older=False)):
            self.action_cursor_down()

    async def action_complete(self) -> None:
        if self.text.startswith("/"):
            await self.run_action("screen.complete")
        else:
            chain = self.screen.focus_chain
            starter = next((one for one in chain if isinstance(one, Starter)), None)
            if starter is not None:
                starter.focus()
            else:
                self.screen.focus_next()

    def fill(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)

    def give_back(self, text: str) -> None:
        """Take back what was sent, before what was typed since."""
        if text:
            self.fill(f"{text}\n{self.text}" if self.text else text)

    def _walk(self, *, older: bool) -> bool:
        text = self.earlier.step(self.text, older)
        if text is None:
            return False
        self.fill(text)
        return True
