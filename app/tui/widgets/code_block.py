"""A block of fenced code: plain as it streams in, highlighted from a thread."""

import time
from functools import partial

from textual.content import Content
from textual.highlight import ANSIDarkHighlightTheme, HighlightTheme, highlight

from app.tui.widgets.text_lines import TextLines

_EVERY_S = 1.0  # while it grows
_MOST_GROWING = 4_000  # characters; a longer one is highlighted when it has ended
_MOST = 200_000


class CodeBlock(TextLines):
    """``language`` is the fence's info string, empty for none. Long lines are folded."""

    DEFAULT_CSS = """
    CodeBlock { margin: 0 2 1 2; background: $panel; }
    """

    def __init__(self, code: str = "", language: str = "", *, ended: bool = False) -> None:
        super().__init__(code, words=False, pad=1)
        self.language = language
        self._styled: list[Content] = []
        self._ended = ended
        self._asked = 0.0

    def on_mount(self) -> None:
        if self._ended:
            self._highlight()

    async def grow(self, text: str) -> None:
        self.append(text)
        if (
            self.is_mounted
            and len(self.text) < _MOST_GROWING
            and time.monotonic() - self._asked > _EVERY_S
        ):
            self._highlight()

    async def end(self) -> None:
        self._ended = True
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
        theme = ANSIDarkHighlightTheme if self.app.native_ansi_color else HighlightTheme
        work = partial(self._style_lines, "\n".join(self.lines), theme)
        self.run_worker(work, thread=True, exclusive=True, group="highlight", exit_on_error=False)

    def _style_lines(self, code: str, theme: type[HighlightTheme]) -> None:
        styled = highlight(code, language=self.language, theme=theme)
        self.app.call_later(self._take, styled.split("\n", allow_blank=True))

    def _take(self, styled: list[Content]) -> None:
        self._styled = styled
        self.forget_drawn()
