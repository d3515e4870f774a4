"""F1: what is said about the focused widget, and what keys do there now, by task."""

from inspect import cleandoc
from typing import Any

from rich.console import Group as Renderables
from rich.table import Table
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult, RenderResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Markdown, Static

from app.tui.keys import Bound, bound, told
from app.tui.screens.dialogs import Panel
from app.tui.widgets.prompt import SearchLine

_TWO = 110  # columns of the terminal, from which on there are two of groups
_LOW, _HIGH = 6, 8  # lines around what scrolls, in a low terminal and in one with room around
_TALL = 30
_SCROLLS = {
    **{key: key for key in ("up", "down", "home", "end")},
    "pageup": "page_up",
    "pagedown": "page_down",
}


class KeyGroup(Static):
    """Draws a group; with a filter the rows that fit, and nothing when none does."""

    COMPONENT_CLASSES = {
        "key-group--title",
        "key-group--key",
        "key-group--more",
    }

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
