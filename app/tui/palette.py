"""The command palette: what can be done, by task, each with its key at the right of its line."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from textual import events, on
from textual.app import ComposeResult
from textual.command import CommandInput, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input
from textual.worker import Worker, WorkerError

from app.chat import slash
from app.tui import modes
from app.tui.keys import Bound, bind, bound
from app.tui.textual_patches import latest
from app.tui.widgets.prompt import SearchLine

_TASK = 10  # cells for the task
_EDGES = 8  # cells beside a line: the border, its padding and the scroll bar
_WIDEST = 100
_TITLE = 10  # a title, and its beginning, count that much more than an explanation
# Slash commands that are the app's own keys, or mean something only while an answer comes; and
# those that are about a message which another screen does not show.
_NEVER = frozenset({"compare", "help", "quit", "stop"})
_IN_CHAT = frozenset({"continue", "copy", "edit", "regen"})


def commands(screen: Screen[Any]) -> Iterator[Bound]:
    """List what a key does on ``screen``, what else the chat can do, and each theme."""
    app = screen.app
    told = False
    for one in bound(screen):
        if one.id is None or one.id == "app.palette":  # opening it from itself would do nothing
            continue
        if one.task == "App" and not told:
            told = True
            yield from _of_the_chat(screen)
        yield one
    for name in sorted(app.available_themes):
        run = partial(app.run_action, f"app.use_theme({name!r})")
        yield Bound("App", None, (), f"Theme {name}", "", run, early=False)


def _of_the_chat(screen: Screen[Any]) -> Iterator[Bound]:
    """Slash commands that no key of ``screen`` has; from another mode they turn to the chat."""
    if not isinstance(screen, modes.Occupied) or screen.is_modal:
        return
    here = screen.app.current_mode == modes.CHAT.name
    bindings = screen.active_bindings.values() if here else ()
    keys = {f"screen.{one.binding.action}" for one in bindings if one.node is screen}
    left_out = _NEVER if here else _NEVER | _IN_CHAT
    for spec in slash.SPECS:
        if (
            spec.action.startswith("screen.")
            and spec.action not in keys
            and spec.name not in left_out
        ):
            title = f"{spec.about[:1].upper()}{spec.about[1:]}"
            run = partial(screen.app.run_action, f"app.in_chat({spec.action!r})")
            yield Bound("Chat", None, (f"/{spec.name}",), title, "", run)


class Commands(Provider):
    """Finds what was typed in titles and explanations."""

    async def discover(self) -> Hits:
        last = ""
        for one in commands(self.screen):
            if one.early:
                task = "" if one.task == last else one.task
                last = one.task
                line = self._line(task, Content(_text(one)), one)
                yield DiscoveryHit(line, one.run, _text(one))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for one in commands(self.screen):
            text = _text(one)
            score = _TITLE * matcher.match(one.title) or matcher.match(text)
            if one.title.lower().startswith(query.lower()):
                score *= _TITLE
            if score > 0:
                line = self._line(one.task, matcher.highlight(text), one)
                yield Hit(score, line, one.run, text)

    def _line(self, task: str, text: Content, one: Bound) -> Content:
        """The task, what it does, and the key at the right edge."""
        key = one.keys[0] if one.keys else ""
        text = text.stylize("not bold $text-muted", len(one.title))
        room = max(_width(self.app.size.width) - _EDGES - _TASK - len(key) - 2, 10)
        return Content.assemble(
            (f"{task:<{_TASK}}", "not bold $text-muted"),
            text.truncate(room, ellipsis=True).pad_right(max(room - text.cell_length, 0)),
            "  ",
            (key, "not bold $text-primary"),
        )


class PaletteLine(CommandInput, SearchLine):
    """Textual's, with readline's keys."""


class Palette(CommandPalette, modes.Styled[Any]):
    """Textual's, drawn anew where its width changes. Enter takes what was typed."""

    BINDINGS = [
        bind("home", "palette.first", "First command", action="command_list('first')", show=False),
        bind("end", "palette.last", "Last command", action="command_list('last')", show=False),
    ]

    def compose(self) -> ComposeResult:
        for one in super().compose():
            if isinstance(one, CommandInput):
                yield PaletteLine(placeholder=one.placeholder, select_on_focus=False, compact=False)
            else:
                yield one

    def on_mount(self) -> None:
        self.query_one("#--container").border_title = "Commands"

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        """While it looks for what was typed, Textual would take what was found before."""
        if self._looking():
            event.stop()
            event.prevent_default()
            self._take_when_found()

    @latest
    async def _take_when_found(self) -> None:
        while looking := self._looking():
            with suppress(WorkerError):  # it has given way to another one
                await self.workers.wait_for_complete(looking)
        self._select_or_command()

    def _looking(self) -> list[Worker[Any]]:
        group = self._GATHER_COMMANDS_GROUP
        return [one for one in self.workers if one.group == group and not one.is_finished]

    def on_resize(self, event: events.Resize) -> None:
        self.query_one("#--container").styles.width = _width(event.size.width)
        self._gather_commands(self.query_one(CommandInput).value.strip())


def _text(one: Bound) -> str:
    return f"{one.title} · {one.more}" if one.more else one.title


def _width(terminal: int) -> int:
    return min(terminal - 4, _WIDEST)
