"""F1 and ctrl+p: help says what keys do now, and something about the focused widget; the palette
lists the same for who looks for it by words, with slash commands and themes."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from inspect import cleandoc
from typing import Any

from rich.console import Group as Renderables
from rich.table import Table
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult, RenderResult
from textual.command import CommandInput, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Markdown, Static
from textual.worker import Worker, WorkerError

from app.chat import slash
from app.tui import modes
from app.tui.keys import Bound, bound, quiet, told
from app.tui.screens.dialogs import Panel
from app.tui.textual_patches import latest
from app.tui.widgets.prompt import SearchLine

_TWO = 110  # columns of the terminal, from which on there are two of groups
_LOW, _HIGH = 6, 8  # lines around what scrolls, in a low terminal and in one with room around
_TALL = 30
_SCROLLS = {
    "up": "up",
    "down": "down",
    "home": "home",
    "end": "end",
    "pageup": "page_up",
    "pagedown": "page_down",
}


class KeyGroup(Static):
    """Draws a group; with a filter the rows that fit, and nothing when none does."""

    COMPONENT_CLASSES = {"key-group--title", "key-group--key", "key-group--more"}

    def __init__(self, title: str, rows: list[Bound], width: int) -> None:
        super().__init__()
        self.title, self._all, self.rows, self._width = title, rows, rows, width

    def filter(self, words: list[str]) -> None:
        """Show the rows that have all ``words``, be it in the title."""
        self.rows = [row for row in self._all if _has(self.title, row, words)]
        self.display = bool(self.rows)
        self.refresh(layout=True)

    def render(self) -> RenderResult:
        title, key, more = (
            self.get_component_rich_style(f"key-group--{part}", partial=True)
            for part in ("title", "key", "more")
        )
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(width=self._width)
        table.add_column(ratio=1)
        for row in self.rows:
            does = Text(row.title)
            if row.more:
                does.append(f" · {row.more}", more)
            table.add_row(Text(" ".join(row.keys), key), does)
        return Renderables(Text(self.title, title), table)


class HelpScreen(Panel[None]):
    """Taken down by esc, or by F1 again. What is typed filters the keys."""

    HORIZONTAL_BREAKPOINTS = [(0, "-one"), (_TWO, "-two")]

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__("Help")
        self._text = _text(screen.focused or screen)
        self.groups = groups(screen)

    def contents(self) -> ComposeResult:
        # Room for the longest key; where one thing has several, each that does not fit has a line.
        keys = (key for rows in self.groups.values() for row in rows for key in row.keys)
        width = max(map(len, keys), default=0)
        yield SearchLine(placeholder="Type to find a key", id="keys-filter")
        with VerticalScroll(can_focus=False):
            if self._text:
                yield Markdown(self._text)
            with Horizontal(id="key-columns"):
                for column in _halves(list(self.groups.items())):
                    with Vertical():
                        yield from (KeyGroup(*group, width) for group in column)
            yield Static("No key does that here.", id="no-key", classes="muted")

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.styles.min_height = scroll.outer_size.height  # nothing moves while one types
        words = event.value.lower().split()
        for text in self.query(Markdown):
            text.display = not words
        drawn = self.query(KeyGroup)
        for one in drawn:
            one.filter(words)
        self.query_one("#no-key").display = not any(one.display for one in drawn)
        scroll.scroll_home(animate=False)

    def on_resize(self, event: events.Resize) -> None:
        """Above and below what scrolls are the filter, the hints and the box's edges."""
        scroll, height = self.query_one(VerticalScroll), event.size.height
        scroll.styles.min_height = None
        scroll.styles.max_height = height - (_LOW if height < _TALL else _HIGH)

    def on_key(self, event: events.Key) -> None:
        """Scroll: the filter keeps the cursor."""
        if scroll := _SCROLLS.get(event.key):
            getattr(self.query_one(VerticalScroll), f"scroll_{scroll}")()


def groups(screen: Screen[Any]) -> dict[str, list[Bound]]:
    """Sort what keys do on ``screen`` now by task."""
    found: dict[str, list[Bound]] = {}
    for one in bound(screen):
        found.setdefault(one.task, []).append(one)
    return found


Group = tuple[str, list[Bound]]


def _halves(of: list[Group]) -> tuple[list[Group], list[Group]]:
    """Two columns as even as can be."""
    heights = [len(rows) + 2 for _, rows in of]
    cut = min(
        range(1, len(of) + 1), key=lambda at: max(sum(heights[:at]), sum(heights[at:])), default=0
    )
    return of[:cut], of[cut:]


def _has(title: str, row: Bound, words: list[str]) -> bool:
    text = " ".join((title, *row.keys, row.title, row.more)).lower()
    return all(word in text for word in words)


def _text(node: DOMNode) -> str:
    """The nearest ``HELP`` above ``node``."""
    for one in node.ancestors_with_self:
        if isinstance(one, Widget) and one.HELP:
            return told(one, cleandoc(one.HELP))
    return ""


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
        yield Bound("App", None, [], f"Theme {name}", "", run, early=False)


def _of_the_chat(screen: Screen[Any]) -> Iterator[Bound]:
    """Slash commands that no key of ``screen`` has; from another mode they turn to the chat."""
    if screen.is_modal:
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
            yield Bound("Chat", None, [f"/{spec.name}"], title, "", run)


class Commands(Provider):
    """Finds what was typed in titles and explanations."""

    async def discover(self) -> Hits:
        last = ""
        for one in commands(self.screen):
            if one.early:
                task = "" if one.task == last else one.task
                last = one.task
                line = self._line(task, Content(_line_of(one)), one)
                yield DiscoveryHit(line, one.run, _line_of(one))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for one in commands(self.screen):
            text = _line_of(one)
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
        quiet("home", "palette.first", "First command", action="command_list('first')"),
        quiet("end", "palette.last", "Last command", action="command_list('last')"),
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


def _line_of(one: Bound) -> str:
    return f"{one.title} · {one.more}" if one.more else one.title


def _width(terminal: int) -> int:
    return min(terminal - 4, _WIDEST)
