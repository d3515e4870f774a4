"""Parts of an answer as it streams: prose, and blocks of code.

Of prose, blocks that have ended are Markdown. The last one is text, line by line with its bold,
italic and code styled, so that adding to it costs the same however long it is. Code is plain as it
streams in, and highlighted from a thread.
"""

import re
import time
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.highlight import ANSIDarkHighlightTheme, HighlightTheme, highlight
from textual.message import Message
from textual.strip import Strip

from app.tui.textual_patches import Column
from app.tui.widgets.markdown import AnswerMarkdown
from app.tui.widgets.text_lines import TextLines
from runtimes.untrusted import visible

# CommonMark 0.31, 4.5: a backtick fence's info string has no backticks.
_OPEN = re.compile(r"(`{3,}+(?!.*`)|~{3,})(.*)\n")
_CLOSE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t\r]*\n?")
# Only fences that begin in the first column are told apart; an indented one belongs to the list
# that it stands in.
_MAYBE_OPEN = re.compile(r"`{1,2}$|`{3,}[^`\n]*$|~{1,2}$|~{3,}[^\n]*$")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # str.splitlines would also break at other characters
_BULLET = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]")
_LONG = 4_000  # characters of one list, after which a part of it is settled


@dataclass(slots=True)
class Section:
    """A stretch of prose, or a block of code."""

    text: str
    code: bool = False
    language: str = ""


class Splitter:
    """Feed it text as it comes: the last of ``sections`` grows, or others follow it. What may yet
    become a fence is held back until it is clear."""

    def __init__(self, text: str = "") -> None:
        """``text`` is a whole one."""
        self.sections: list[Section] = []
        self._fence = ""  # the open fence
        self._held = ""
        self._blank = ""  # line ends that open no section by themselves
        self._fresh = True  # what comes next begins a line
        self.feed(text, last=bool(text))

    def feed(self, text: str, *, last: bool = False) -> None:
        """``last`` gives up what was held back."""
        text, self._held = self._held + text, ""
        for line in _LINE.findall(text):
            whole = line.endswith("\n")
            if self._fresh and not whole and not last and self._may_be_fence(line):
                self._held = line
                return
            if not (self._fresh and self._is_fence(line)):
                self._add(line)
            self._fresh = whole

    def _may_be_fence(self, line: str) -> bool:
        if not self._fence:
            return _MAYBE_OPEN.match(line) is not None
        return not line.strip(f" \t\r{self._fence[0]}") and len(line) < len(self._fence) + 8

    def _is_fence(self, line: str) -> bool:
        """Whether a line opens a block of code, or ends it."""
        if self._fence:
            match = _CLOSE.fullmatch(line)
            closes = match is not None and match[1].startswith(self._fence)
            self._fence = "" if closes else self._fence
            return closes
        match = _OPEN.fullmatch(line)
        if match is None:
            return False
        self._fence, self._blank, info = match[1], "", match[2].split()
        self.sections.append(Section("", code=True, language=info[0] if info else ""))
        return True

    def _add(self, text: str) -> None:
        if self.sections and self.sections[-1].code == bool(self._fence):
            self.sections[-1].text += text
            return
        self._blank += text
        if self._blank.strip():
            self.sections.append(Section(self._blank))
            self._blank = ""


def copyable(text: str) -> list[tuple[str, str]]:
    """Parts of a message to copy, (what it is, its text): all of it, then each block of code."""
    found = [("The whole message", text)]
    for section in Splitter(text).sections:
        if section.code:
            code, language = section.text, f", {section.language}" if section.language else ""
            lines = code.count("\n") + (not code.endswith("\n"))
            first = next((line.strip() for line in code.splitlines() if line.strip()), "")
            size = f"{lines} line{'s' if lines > 1 else ''}"
            found.append((f"Code {len(found)}{language}, {size}: {first}", code.removesuffix("\n")))
    return found


def settled(text: str) -> int:
    """How many characters of streamed Markdown without fences are blocks that have ended.

    A block has ended where a blank line is followed by a line that begins in the first column. A
    list continues over blank lines as long as items follow; a long one is settled item by item.
    """
    end, at, listing = 0, 0, bool(_BULLET.match(text))
    while (blank := text.find("\n\n", at)) >= 0:
        at = blank + 1
        next_line = blank + 2
        while text.startswith("\n", next_line):
            next_line += 1
        if next_line >= len(text) or text[next_line] in " \t":
            continue
        rest = text[next_line:]
        # One character more shows whether "-" or "1." begins an item.
        if len(rest) < 3 and rest[0] in "-*+0123456789":
            break
        item = bool(_BULLET.match(rest))
        if not (listing and item):
            end = next_line
        listing = item
    if not end and len(text) > _LONG and _BULLET.match(text):
        for match in re.finditer(r"\n(?=(?:[-*+]|\d{1,9}[.)])[ \t])", text):
            end = match.end()
    return end


_INLINE = re.compile(
    r"`(?P<code>[^`\n]+)`|\*\*(?P<bold>\S(?:[^*\n]*\S)?)\*\*|(?<![\w*])\*(?P<em>[^\s*][^*\n]*)\*(?!\w)"
)
_STYLES = {"code": "$text-warning on $warning 10%", "bold": "bold", "em": "italic"}
_PAGE = 24  # blocks
_LONG_BLOCK = 2_000  # characters
_HEADING = re.compile(r"#{1,6} ")


class CodeTheme(HighlightTheme):
    """Textual's colours of code at their full strength."""

    STYLES = {
        kind: re.sub(r" \d+%", "", style.replace("$text 60%", "$text-muted"))
        for kind, style in HighlightTheme.STYLES.items()
    }


class Tail(TextLines):
    """The block that is being written."""

    grows = True

    def line_content(self, number: int) -> Content:
        """Bold, italic, code and headings as such, their marks still there."""
        line = self.lines[number]
        content = Content(line)
        if _HEADING.match(line):
            return content.stylize("bold")
        for match in _INLINE.finditer(line):
            content = content.stylize(_STYLES[str(match.lastgroup)], *match.span())
        return content


class Prose(Column, Vertical):
    """``text`` so far; ``ended`` when nothing more comes."""

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        super().__init__()
        self._settled = text if ended else ""
        self._pending = "" if ended else text
        # Whole blocks each; only to the last one is anything added.
        self._pages = [AnswerMarkdown(visible(self._settled, lines=True) or None)]
        self._block_ended = False  # nothing continues the last block of it
        self._tail = None if ended else Tail()

    def compose(self) -> ComposeResult:
        yield self._pages[-1]
        if self._tail is not None:
            yield self._tail

    @property
    def text(self) -> str:
        return self._settled + self._pending

    @property
    def tail_text(self) -> str:
        """The part that is shown as text, not yet as Markdown."""
        return "\n".join(self._tail.lines) if self._tail and self._pending.strip() else ""

    async def on_mount(self) -> None:
        await self._show_tail()

    async def grow(self, text: str) -> None:
        self._pending += text
        end = settled(self._pending)
        if end:
            await self._settle(end)
            self._block_ended = self._settled.endswith("\n\n")
        await self._show_tail()

    async def end(self) -> None:
        """Make all of it Markdown: the text has ended."""
        if self._pending:
            await self._settle(len(self._pending))
        self._block_ended = False  # the answer may be continued
        await self._show_tail()

    async def _settle(self, end: int) -> None:
        done, self._pending = self._pending[:end], self._pending[end:]
        self._settled += done
        page = self._pages[-1]
        if len(page.children) >= _PAGE or len(done) >= _LONG_BLOCK:
            # What is appended to a list is parsed again with all of the list.
            page = AnswerMarkdown()
            await self.mount(page, after=self._pages[-1])
            self._pages.append(page)
        if self._block_ended:
            await page.add(visible(done, lines=True))
        else:
            # Never after an update(): where that ended with an empty line, append() (Textual 8.2.8)
            # puts the next block in the place of the last one.
            await page.append(visible(done, lines=True))

    async def _show_tail(self) -> None:
        text = self._pending.rstrip("\n")
        if self._tail is None:
            if not text:
                return
            self._tail = Tail()  # an answer that had ended is continued
            await self.mount(self._tail)
        self._tail.set_text(text)
        self._tail.set_class(bool(text), "-shown")


_COPY = " copy "
_EVERY_S = 1.0  # while it grows
_MOST_GROWING = 4_000  # characters; a longer one is highlighted when it has ended
_MOST = 200_000


class CodeBlock(TextLines):
    """``language`` is the fence's info string, empty for none. Long lines are folded.

    Its border is drawn here: Textual's would be drawn anew for all of a block that grows.
    """

    above, words, pad = 1, False, 2

    @dataclass
    class Copied(Message):
        """The word in its border was clicked."""

        code: str

    def __init__(self, code: str, language: str, *, ended: bool) -> None:
        super().__init__(code)
        self.language = language
        self._styled: list[Content] = []
        self.grows = not ended
        self._asked = 0.0

    def on_mount(self) -> None:
        if not self.grows:
            self._highlight()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return super().get_content_height(container, viewport, width) + 2

    def draw(self, y: int, base: RichStyle) -> Strip:
        width, last = self.size.width, self.size.height - 1
        line = base + self._style("$border-blurred")
        if y == last:
            return Strip([Segment(f"╰{'─' * (width - 2)}╯", line)], width)
        if y:
            strip, edge = super().draw(y, base), Strip([Segment("│", line)], 1)
            return Strip.join([edge, strip.crop(1, width - 1), edge])
        name = f" {self.language[: max(0, width - 14)]} " if self.language else ""
        dim = base + self._style("$text-muted")
        parts = [
            ("╭─", line),
            (name, dim),
            ("─" * (width - 4 - cell_len(name) - len(_COPY)), line),
            (_COPY, dim),
            ("─╮", line),
        ]
        return Strip([Segment(*part) for part in parts], width)

    def _style(self, colour: str) -> RichStyle:
        return self.app.stylesheet.parse_style(colour).rich_style

    def on_click(self, event: Click) -> None:
        """On the word in the border."""
        if event.y == 0 and 0 <= self.size.width - 2 - event.x <= len(_COPY):
            event.stop()
            self.post_message(self.Copied(self.text.removesuffix("\n")))

    async def grow(self, text: str) -> None:
        self.append(text)
        if (
            self.is_mounted
            and len(self.text) < _MOST_GROWING
            and time.monotonic() - self._asked > _EVERY_S
        ):
            self._highlight()

    async def end(self) -> None:
        self.grows = False
        self.forget_drawn()
        if self.is_mounted:
            self._highlight()

    def line_content(self, number: int) -> Content:
        """The highlighted line, if the highlighter has seen it as it is now."""
        line = self.lines[number]
        if number < len(self._styled) and self._styled[number].plain == line:
            return self._styled[number]
        return Content(line)

    def _highlight(self) -> None:
        if not self.language or len(self.text) > _MOST:
            return
        self._asked = time.monotonic()
        theme = ANSIDarkHighlightTheme if self.app.native_ansi_color else CodeTheme
        self._style_lines("\n".join(self.lines), theme)

    @work(thread=True, exclusive=True, group="highlight", exit_on_error=False)
    def _style_lines(self, code: str, theme: type[HighlightTheme]) -> None:
        styled = highlight(code, language=self.language, theme=theme)
        self.app.call_later(self._take, styled.split("\n", allow_blank=True))

    def _take(self, styled: list[Content]) -> None:
        self._styled = styled
        self.forget_drawn()
