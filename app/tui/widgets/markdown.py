"""Markdown as models write it: a line break is one, boxes of tasks, tables, and formulas as plain
text: of those, what is not known stays as it is.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from typing import cast

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.content import Content
from textual.style import Style
from textual.widgets import Markdown
from textual.widgets._markdown import MarkdownBlock, MarkdownTable, MarkdownTH

from app.tui.textual_patches import Ground

_BOX = re.compile(r"\[([ xX])\] ")
# A sum of money is no formula: no blank inside the dollars, no digit behind them.
_FORMULA = re.compile(
    r"\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$(.+?)\$\$|\$(?!\s)([^$\n]+?)(?<![\s\\])\$(?!\d)", re.DOTALL
)


class AnswerMarkdown(Ground, Markdown):
    """Textual's, with the rules of this module."""

    def __init__(self, text: str | None = None) -> None:
        super().__init__(text, parser_factory=_parser, open_links=False)

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        return AlignedTable if block_name == "table_open" else super().get_block_class(block_name)

    async def add(self, text: str) -> None:
        """Append whole blocks that continue none of those that are there: ``append`` would parse,
        lay out and draw the last of those again."""
        begin = self._last_parsed_line = len(self.source.splitlines())
        self._markdown = self.source + text
        tokens = _parser().parse(text)
        starts = [token.map[0] for token in tokens if token.map is not None and not token.level]
        if starts:
            self._last_parsed_line += starts[-1]
        blocks = list(self._parse_markdown(tokens))
        for block in blocks:
            first, last = block.source_range
            block.source_range = (begin + first, begin + last)
        await self.mount_all(blocks)

    def _parse_markdown(self, tokens: Iterable[Token]) -> Iterable[MarkdownBlock]:
        """Textual's; being mounted lays a block out and draws it. Its text, which it had before,
        would make the screen do both again."""
        for block in super()._parse_markdown(tokens):
            for one in (block, *_blocks(block)):
                one._layout_required = one._repaint_required = False
            yield block


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
        line = self.app.stylesheet.parse_style("$border-blurred").rich_style
        table = Table(box=box.ROUNDED, border_style=line, header_style="bold", show_lines=False)
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
    """Alignments of the columns, by what stands below their titles."""
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
    """Parse a formula: the text between its marks gets the style of code."""
    found = _FORMULA.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.push("code_inline", "code", 0).content = plain(
            next(part for part in found.groups() if part is not None)
        )
    state.pos = found.end()
    return True


_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi "
    "chi psi omega"
).split()
_PAIRS = (
    "times \u00d7 cdot · div ÷ pm ± mp \u2213 circ ° degree ° infty ∞ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ "
    "neq ≠ approx ≈ equiv ≡ propto ∝ ll ≪ gg ≫ sum ∑ prod ∏ int ∫ partial ∂ nabla ∇ in ∈ notin ∉ "
    "subset ⊂ subseteq ⊆ cup \u222a cap ∩ emptyset ∅ forall ∀ exists ∃ neg ¬ land ∧ lor \u2228 "
    "to → rightarrow → leftarrow ← Rightarrow ⇒ implies ⇒ iff ⇔ ldots … dots … cdots ⋯ perp ⊥"
).split()
_SIGNS = dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True))
for _name in _GREEK:
    _letter = unicodedata.lookup(f"GREEK SMALL LETTER {_name.upper().replace('LAMBDA', 'LAMDA')}")
    _SIGNS |= {_name: _letter, _name.title(): _letter.upper()}
_SIGNS |= {name: name for name in "arg cos det dim exp gcd lim ln log max min sin tan".split()}
_RAISED = str.maketrans("0123456789+-=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ")
_LOWERED = str.maketrans("0123456789+-=()aeijkmnoprtx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑᵢⱼₖₘₙₒₚᵣₜₓ")
_GROUP = r"\{([^{}]*)\}"  # without groups in it: those have become text before
_FRACTION = re.compile(rf"\\[dt]?frac\s*{_GROUP}\s*{_GROUP}")
_ROOT = re.compile(rf"\\sqrt\s*{_GROUP}")
_PLAIN = re.compile(rf"\\(?:text|mathrm|mathbf|mathit|operatorname|boxed)\s*{_GROUP}")
_SCRIPT = re.compile(r"([\^_])(?:\{([^{}\\]*)\}|([^\s{}\\^_(]))")
_NAME = re.compile(r"\\([A-Za-z]+)")
_DROPPED = re.compile(r"\\(?:left|right|big|Big|displaystyle|limits)(?![A-Za-z])\.?|\\[,;:! ]|[&]")


def plain(formula: str) -> str:
    """``formula`` without its commands, as far as they are known."""
    text = _DROPPED.sub("", formula).replace("\\\\", "; ")
    before = None
    while before != text:  # from the innermost group outwards
        before = text
        text = _SCRIPT.sub(_script, text)
        text = _PLAIN.sub(r"\1", text)
        text = _ROOT.sub(lambda found: f"√{_operand(found[1])}", text)
        text = _FRACTION.sub(lambda found: f"{_operand(found[1])}/{_operand(found[2])}", text)
        text = _NAME.sub(lambda found: _SIGNS.get(found[1], found[0]), text)
    return re.sub(r"\\([{}%$#_|])", r"\1", " ".join(text.split()))


def _operand(text: str) -> str:
    """In brackets where it is more than one number, name or sign."""
    text = text.strip()
    return text if re.fullmatch(r"\d+(\.\d+)?|[^\W\d]+", text) else f"({text})"


def _script(found: re.Match[str]) -> str:
    """Raised or lowered, where there are such characters for all of it."""
    mark, text = found[1], (found[2] if found[2] is not None else found[3])
    table = _RAISED if mark == "^" else _LOWERED
    if all(ord(one) in table for one in text):
        return text.translate(table)
    return f"{mark}{text}" if len(text) == 1 else f"{mark}({text})"
