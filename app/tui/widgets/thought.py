"""What a model thought before it answered: one line, with all of it below when opened."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from app.tui.app import services_of
from app.tui.widgets.text_lines import TextLines


class Thought(Vertical):
    """Collapsed until ``opened``."""

    DEFAULT_CSS = """
    Thought { height: auto; margin: 0 0 1 0; }
    Thought > .title { padding: 0 2; color: $text-muted; text-style: italic; }
    Thought > TextLines { display: none; margin: 0 2; color: $text-muted; }
    Thought.-opened > TextLines { display: block; }
    """

    def __init__(self, text: str = "", tokens: str = "", *, thinking: bool = False) -> None:
        super().__init__()
        self._lines = TextLines(text.strip("\n"))
        self._title = Static(classes="title", markup=False)
        self._tokens, self._thinking = tokens, thinking
        self.opened = False

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._lines

    def on_mount(self) -> None:
        """Say what it is; opened or hidden where the settings say so."""
        wanted = services_of(self).config.thinking
        self.display = wanted != "hidden"
        if wanted == "shown" and not self.opened:
            self.toggle()
        self._say()

    @property
    def text(self) -> str:
        return self._lines.text

    def show(self, text: str, tokens: str, *, thinking: bool) -> None:
        """Replace what is known; ``tokens`` as words, such as "120 tokens"."""
        self._lines.set_text(text.strip("\n"))
        self._tokens, self._thinking = tokens, thinking
        self._say()

    def toggle(self) -> None:
        self.opened = not self.opened
        self.set_class(self.opened, "-opened")
        self._say()

    def _say(self) -> None:
        mark = "▾" if self.opened else "▸"
        doing = "Thinking" if self._thinking else "Thought"
        about = f": {self._tokens}" if self._tokens else ""
        how = "" if self.opened else " (space opens)"
        self._title.update(f"{mark} {doing}{about}{how}")
