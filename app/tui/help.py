"""F1: what is said about the focused widget, and what keys do there now, by task."""

from inspect import cleandoc
from typing import Any, NamedTuple

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

from app.tui.keys import bound, by_task, shown, told
from app.tui.screens.dialogs import Panel
from app.tui.widgets.prompt import SearchLine

_TWO = 110  # columns of the terminal, from which on there are two of groups
_LOW, _HIGH = 6, 8  # lines around what scrolls, in a low terminal and in one with room around
_TALL = 30


class HelpLine(NamedTuple):
    """One line of help."""

    keys: str
    does: str
    more: str


class HelpGroup(NamedTuple):
    """What serves one task."""

    title: str
    rows: tuple[HelpLine, ...]

    def with_words(self, words: list[str]) -> "HelpGroup":
        """Those rows that have all ``words``, be it in the title."""
        rows = (row for row in self.rows if _has(f"{self.title} {' '.join(row)}", words))
        return HelpGroup(self.title, tuple(rows))


class KeyGroup(Static):
    """Draws a group; with a filter the rows that fit, and nothing when none does."""

    COMPONENT_CLASSES = {
        "key-group--title",
        "key-group--key",
        "key-group--more",
    }

    def __init__(self, group: HelpGroup, width: int) -> None:
        super().__init__()
        self._group = self.filtered = group
        self._width = width

    def filter(self, words: list[str]) -> None:
        """Show the rows that have all ``words``."""
        self.filtered = self._group.with_words(words)
        self.display = bool(self.filtered.rows)
        self.refresh(layout=True)

    def render(self) -> RenderResult:
        title, key, more = (
            self.get_component_rich_style(f"key-group--{part}", partial=True)
            for part in ("title", "key", "more")
        )
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(width=self._width)
        table.add_column(ratio=1)
        for row in self.filtered.rows:
            does = Text(row.does)
            if row.more:
                does.append(f" · {row.more}", more)
            table.add_row(Text(row.keys, key), does)
        return Renderables(Text(self._group.title, title), table)


class HelpScreen(Panel[None]):
    """Taken down by esc, or by F1 again. What is typed filters the keys."""

    HORIZONTAL_BREAKPOINTS = [(0, "-one"), (_TWO, "-two")]

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__("Help")
        self._text = _text(screen.focused or screen)
        self.groups = groups(screen)

    def contents(self) -> ComposeResult:
        # Room for the longest key; where one thing has several, each that does not fit has a line.
        keys = (key for one in self.groups for row in one.rows for key in row.keys.split())
        width = max(map(len, keys), default=0)
        yield SearchLine(placeholder="Type to find a key", id="keys-filter")
        with VerticalScroll(can_focus=False):
            if self._text:
                yield Markdown(self._text)
            with Horizontal(id="key-columns"):
                for column in _halves(self.groups):
                    with Vertical():
                        yield from (KeyGroup(group, width) for group in column)
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

    def key_up(self) -> None:
        self.query_one(VerticalScroll).scroll_up()

    def key_down(self) -> None:
        self.query_one(VerticalScroll).scroll_down()

    def key_home(self) -> None:
        self.query_one(VerticalScroll).scroll_home()

    def key_end(self) -> None:
        self.query_one(VerticalScroll).scroll_end()

    def key_pageup(self) -> None:
        self.query_one(VerticalScroll).scroll_page_up()

    def key_pagedown(self) -> None:
        self.query_one(VerticalScroll).scroll_page_down()


def groups(screen: Screen[Any]) -> list[HelpGroup]:
    """What keys do on ``screen`` now, by task."""
    return [
        HelpGroup(
            task,
            tuple(HelpLine(" ".join(map(shown, one.keys)), one.title, one.more) for one in those),
        )
        for task, those in by_task(bound(screen))
    ]


def _halves(of: list[HelpGroup]) -> tuple[list[HelpGroup], list[HelpGroup]]:
    """Two columns as even as can be."""
    heights = [len(one.rows) + 2 for one in of]
    cut = min(
        range(1, len(of) + 1), key=lambda at: max(sum(heights[:at]), sum(heights[at:])), default=0
    )
    return of[:cut], of[cut:]


def _has(text: str, words: list[str]) -> bool:
    return all(word in text.lower() for word in words)


def _text(node: DOMNode) -> str:
    """The nearest ``HELP`` above ``node``."""
    for one in node.ancestors_with_self:
        if isinstance(one, Widget) and one.HELP:
            return told(one, cleandoc(one.HELP))
    return ""
