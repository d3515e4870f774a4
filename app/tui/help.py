"""What keys do, as they are mapped now: F1 tells it of the focused widget, the palette of all."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from inspect import cleandoc
from typing import Any

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult, SystemCommand
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Markdown, Static

from app.tui.keys import shown, told
from app.tui.screens.dialogs import Panel


@dataclass(frozen=True, slots=True)
class Group:
    """The bindings of one place: (keys, what they do)."""

    title: str
    rows: tuple[tuple[str, str], ...]


class HelpScreen(Panel[None]):
    """Taken down by esc, or by F1 again."""

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__("Help")
        self._text = _text(screen.focused or screen)
        self.groups = groups(screen)

    def contents(self) -> ComposeResult:
        with VerticalScroll():
            if self._text:
                yield Markdown(self._text)
            yield Static(self._table())

    def _table(self) -> Table:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), expand=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        for number, group in enumerate(self.groups):
            if number:
                table.add_row("", "")
            table.add_row(Text(group.title, style="bold underline"), "")
            for keys, does in group.rows:
                table.add_row(Text(keys, style="bold"), does)
        return table


def groups(screen: Screen[Any]) -> list[Group]:
    """What keys do on ``screen`` now, from the focused widget outwards; last the many keys that
    Textual's own widgets have."""
    ours: dict[DOMNode, dict[tuple[str, str], list[str]]] = {}
    theirs: dict[DOMNode, dict[tuple[str, str], list[str]]] = {}
    for node, binding, enabled, tooltip in screen.active_bindings.values():
        if not binding.description or not enabled:
            continue
        does = " · ".join(part for part in (binding.description, tooltip) if part)
        rows = (ours if binding.id else theirs).setdefault(node, {})
        rows.setdefault((binding.action, does), []).append(shown(binding.key))
    outwards = list((screen.focused or screen).ancestors_with_self)
    return [
        Group(
            _title(node), tuple((" ".join(keys), does) for (_, does), keys in found[node].items())
        )
        for found in (ours, theirs)
        for node in outwards
        if node in found
    ]


def _title(node: DOMNode) -> str:
    if node is node.app:
        return "Everywhere"
    return node.BINDING_GROUP_TITLE or type(node).__name__.strip("_").removesuffix("Screen")


def _text(node: DOMNode) -> str:
    """The nearest ``HELP`` above ``node``."""
    for one in node.ancestors_with_self:
        if isinstance(one, Widget) and one.HELP:
            return told(one, cleandoc(one.HELP))
    return ""


def commands(screen: Screen[Any]) -> Iterator[SystemCommand]:
    """Entries of the command palette: one for each binding that has an id and says what it does."""
    seen = {"app.palette"}  # opening it from itself would do nothing
    for node, binding, enabled, tooltip in screen.active_bindings.values():
        if binding.id is None or not binding.description or not enabled or binding.id in seen:
            continue
        seen.add(binding.id)
        more = tooltip or binding.tooltip
        title = f"{binding.description}: {more}" if more else binding.description
        run = partial(screen.app.run_action, binding.action, node)
        yield SystemCommand(title, shown(binding.key), run)
