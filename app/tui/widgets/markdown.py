"""Markdown as models write it: a line break is one, boxes of tasks, tables, plain formulas."""

import re
from collections.abc import Iterator
from functools import cache
from typing import cast

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.content import Content
from textual.style import Style
from textual.widgets import Markdown
from textual.widgets._markdown import MarkdownBlock, MarkdownTable, MarkdownTH

from app.tui.widgets import latex

_BOX = re.compile(r"\[([ xX])\] ")
# A sum of money is no formula: no blank inside the dollars, no digit behind them.
_FORMULA = re.compile(
    r"\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$(.+?)\$\$|\$(?!\s)([^$\n]+?)(?<![\s\\])\$(?!\d)", re.DOTALL
)


class AnswerMarkdown(Markdown):
    """Textual's, with the rules of this module."""

    def __init__(self, text: str | None = None) -> None:
        super().__init__(text, parser_factory=_parser, open_links=False)

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        return AlignedTable if block_name == "table_open" else super().get_block_class(block_name)


class AlignedTable(MarkdownTable):
    """As wide as its cells need, each column aligned as the text says."""

    DEFAULT_CSS = "AlignedTable { height: auto; }"

    def compose(self) -> ComposeResult:
        """No widgets: a table is one text."""
        self._read(self)
        yield from ()

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if isinstance(block, AlignedTable):
            self._read(block)
        else:
            await super()._update_from_block(block)

    def _read(self, block: MarkdownTable) -> None:
        headers, rows = block._get_headers_and_rows()
        table = Table(box=box.SQUARE, border_style="dim", header_style="bold", show_lines=False)
        for header, align in zip(headers, _alignments(block), strict=True):
            table.add_column(self._text(header), justify=align, overflow="fold")
        for row in rows:
            table.add_row(*map(self._text, row))
        self.update(table)

    def _text(self, content: Content) -> Text:
        text = Text(content.plain)
        for start, end, style in content.spans:
            if isinstance(style, Style):  # of a link
                text.stylize(style.rich_style, start, end)
            else:
                text.stylize(self.get_component_rich_style(style.strip(".")), start, end)
        return text


def _alignments(table: MarkdownTable) -> Iterator[JustifyMethod]:
    """Of each column, by what stands below its title."""
    for block in _blocks(table):
        if isinstance(block, MarkdownTH):
            said = str(block._token.attrs.get("style", ""))
            yield cast(JustifyMethod, said.partition("text-align:")[2] or "left")


def _blocks(block: MarkdownBlock) -> Iterator[MarkdownBlock]:
    for one in block._blocks:
        yield one
        yield from _blocks(one)


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("gfm-like")
    parser.core.ruler.push("answers", _answers)
    parser.inline.ruler.before("escape", "formula", _formula)
    return parser


def _answers(state: StateCore) -> None:
    """Line breaks stay, and a list's items may begin with a box."""
    for number, token in enumerate(state.tokens):
        children = token.children or ()
        for child in children:
            if child.type == "softbreak":
                child.type = "hardbreak"
        item = number > 1 and state.tokens[number - 2].type == "list_item_open"
        if item and children and (found := _BOX.match(children[0].content)):
            sign = "☐ " if found[1] == " " else "☑ "
            children[0].content = sign + children[0].content[found.end() :]


def _formula(state: StateInline, silent: bool) -> bool:
    """What stands between the marks of a formula is text in the style of code."""
    found = _FORMULA.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.push("code_inline", "code", 0).content = latex.plain(
            next(part for part in found.groups() if part is not None)
        )
    state.pos = found.end()
    return True
