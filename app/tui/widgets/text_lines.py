"""Text that grows at its end, at a cost that does not depend on how long it is.

Markdown is parsed again from its last block whenever something is added, which is quadratic for a
long block. Here only the lines that changed are wrapped again, and rows that were drawn are kept.
"""

from itertools import accumulate, pairwise
from typing import ClassVar

from rich._wrap import divide_line
from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from runtimes.untrusted import visible

_TAB = 4
_CURSOR = "▍"


class TextLines(Widget):
    """The text can be selected with the mouse. A subclass may style a line (``line_content``)."""

    ALLOW_SELECT = True
    above: ClassVar[int] = 0  # rows that a subclass draws above the text
    words: ClassVar[bool] = True  # lines are broken between words
    pad: ClassVar[int] = 0  # empty columns left and right
    grows = False  # a cursor stands at its end

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.text = ""
        self.lines: list[str] = [""]  # as they are shown, before they are wrapped
        # (line, start, end) of every row at the width ``_width``, and the first row of each line.
        self._rows: list[tuple[int, int, int]] = []
        self._first: list[int] = []
        self._width = 0
        self._drawn: dict[int, Strip] = {}
        self._drawn_for: object = None
        self.set_text(text)

    def append(self, text: str) -> None:
        if not text:
            return
        self.text += text
        first = len(self.lines) - 1
        head, *rest = visible(text, lines=True).split("\n")
        self.lines[-1] = (self.lines[-1] + head).expandtabs(_TAB)
        self.lines += [line.expandtabs(_TAB) for line in rest]
        self._wrap_from(first)

    def set_text(self, text: str) -> None:
        if text.startswith(self.text):
            self.append(text[len(self.text) :])
            return
        self.text = text
        self.lines = [line.expandtabs(_TAB) for line in visible(text, lines=True).split("\n")]
        self._wrap_from(0)

    def line_content(self, number: int) -> Content:
        """How a line is shown; as many characters as the line has."""
        return Content(self.lines[number])

    def forget_drawn(self) -> None:
        """Draw every row again; for when ``line_content`` has changed."""
        self._drawn.clear()
        self.refresh()

    def _wrap_from(self, line: int) -> None:
        """Wrap the lines from ``line`` on, and say what of the screen that changes."""
        if not self._width:
            self.refresh(layout=True)
            return
        before = len(self._rows)
        row = self._first[line] if line < len(self._first) else before
        del self._rows[row:], self._first[line:]
        for old in [number for number in self._drawn if number >= row]:
            del self._drawn[old]
        self._wrap_rest()
        if len(self._rows) != before:
            self.refresh(layout=True)
        else:
            height = max(1, before - row)
            self.refresh(Region(0, self.above + row, self.size.width, height))

    def _wrap_rest(self) -> None:
        for number in range(len(self._first), len(self.lines)):
            self._first.append(len(self._rows))
            spans = wrap(self.lines[number], self._width, words=self.words)
            self._rows += [(number, *span) for span in spans]

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Rows at ``width``; the empty line after a last line feed has none."""
        inner = max(1, width - 2 * self.pad)
        if inner != self._width:
            self._width = inner
            self._rows, self._first, self._drawn = [], [], {}
            self._wrap_rest()
        return max(1, len(self._rows) - (len(self.lines) > 1 and not self.lines[-1]))

    def render_lines(self, crop: Region) -> list[Strip]:
        """The rows of ``crop``; drawn once each, until they or the style change."""
        if not self.is_attached:  # taken away since the picture was laid out
            return [Strip.blank(crop.width)] * crop.height
        base, background = self.rich_style, self.background_colors[1]
        filters = self.get_line_filters()
        key = (base, background, self.size.width, *map(id, filters), self.app.theme)
        if key != self._drawn_for:
            self._drawn.clear()
            self._drawn_for = key
        strips = []
        for y in crop.line_range:
            strip = self._drawn.get(y)
            if strip is None:
                strip = self.draw(y, base)
                for filter in filters:
                    strip = strip.apply_filter(filter, background)
                self._drawn[y] = strip
            strips.append(strip)
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def draw(self, y: int, base: RichStyle) -> Strip:
        """The row at ``y``."""
        width, row = self.size.width, y - self.above
        if row >= len(self._rows):
            return Strip.blank(width, base)
        line, start, end = self._rows[row]
        content = self.line_content(line)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(line)) is not None:
            left, right = span
            style = self.screen.get_component_styles("screen--selection").background
            stop = len(content.plain) if right == -1 else right
            content = content.stylize(f"on {style.hex}", left, stop)
        part = content[start:end]
        parse = self.app.stylesheet.parse_style
        segments = [
            Segment(text, style.rich_style)
            for text, style in part.render(self.visual_style, end="", parse_style=parse)
        ]
        strip = Strip(segments, part.cell_length).apply_offsets(start, line)
        if self.grows and row == len(self._rows) - 1:
            strip = Strip([*strip, Segment(_CURSOR, base)])
        left_pad = Strip.blank(self.pad, base)
        return Strip.join([left_pad, strip]).adjust_cell_length(width, base)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(self.lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.forget_drawn()


def wrap(line: str, width: int, *, words: bool) -> list[tuple[int, int]]:
    """The (start, end) of each row of a line: broken between words, or wherever the width ends.

    At least one row; no row is wider than ``width`` unless a single character is.
    """
    if width < 1 or (len(line) <= width and (line.isascii() or cell_len(line) <= width)):
        return [(0, len(line))]
    ends = divide_line(line, width) if words else accumulate(map(len, chop_cells(line, width)))
    return list(pairwise(sorted({0, *ends, len(line)})))
