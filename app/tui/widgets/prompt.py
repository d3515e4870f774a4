"""Where one types: enter sends, ctrl+j is a new line, a paste of many lines stays text; and the
commands that fit what was typed after a slash.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from app.chat.slash import SlashChoice
from app.tui.keys import told
from app.tui.widgets.readline import Area
from app.tui.widgets.welcome import Starter

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
        self.set_class(False, "-error")
        self._say()

    def move(self, step: int) -> bool:
        """Mark the one above or below, at the ends the one at the other end; False when nothing is
        offered."""
        count = len(self._commands) if self.has_class("-shown") else 0
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

    def _say(self) -> None:
        shown = self._commands[self._top : self._top + _MOST]
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
        offered = self._commands[self._top : self._top + _MOST]
        if at is not None and at.y < len(offered) and self.clicked is not None:
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
        self.set_class(True, "-shown")
        self.set_class(True, "-error")
        self.update(Content.assemble(("! ", "bold $text-error"), (text, "$text-error")))

    def hide(self) -> None:
        self._commands, self.marked = (), None
        self.set_class(False, "-shown")


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
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="chat.send"),
        Binding("ctrl+j,shift+enter,alt+enter", "new_line", "New line", id="chat.newline"),
        Binding("up", "older", "Earlier prompt", id="chat.older", show=False),
        Binding("down", "newer", "Later prompt", id="chat.newer", show=False),
        Binding("ctrl+up", "screen.select_last", "Select a message", id="chat.select", show=False),
        Binding("tab", "complete", "Complete a command", id="chat.complete", show=False),
    ]

    class Sent(Message):
        """Enter was pressed on a text that is not blank."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Detach(Message):
        """Backspace in an empty prompt."""

    def __init__(self, menu: SlashMenu | None = None) -> None:
        """``menu``: what is offered for what is typed; up and down move in it, enter takes it."""
        super().__init__(
            soft_wrap=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder=_PLACEHOLDER,
        )
        self.earlier = PromptHistory()
        self._menu = menu
        if menu is not None:
            menu.clicked = self.action_send
        self.recall: Callable[[], bool] | None = None  # what up does first in an empty prompt

    async def _on_key(self, event: events.Key) -> None:
        """Textual calls those of the classes above next."""
        if event.key == "backspace" and not self.text:
            self.post_message(self.Detach())

    def on_mount(self) -> None:
        if self.placeholder == _PLACEHOLDER:
            self.placeholder = told(self, _PLACEHOLDER)

    def action_send(self) -> None:
        """Hand the text on. What is typed next is not part of it, so the prompt is empty now."""
        marked = self._menu.take() if self._menu is not None else None
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
        if self._menu is not None and self._menu.move(-1):
            return
        if not self.text and self.recall is not None and self.recall():
            return
        if self.cursor_at_first_line and self._walk(older=True):
            return
        self.action_cursor_up()

    def action_newer(self) -> None:
        if self._menu is not None and self._menu.move(1):
            return
        if self.cursor_at_last_line and self._walk(older=False):
            return
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
