"""The text of an answer as it streams: thinking, prose and code, each in a widget of its own."""

from collections.abc import Iterator
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Click
from textual.widget import Widget
from textual.widgets import Static

from app.tui.app import services_of
from app.tui.textual_patches import Column
from app.tui.widgets.prose import CodeBlock, Prose, Section, Splitter
from app.tui.widgets.text_lines import TextLines


@dataclass(frozen=True, slots=True)
class Parts:
    """An answer's text: what was thought, and the rest."""

    text: str = ""
    thinking: str = ""
    tokens: str = ""  # length of the thinking in words, "120 tokens"
    thinks: bool = False  # the thinking has not ended


class Thought(Vertical):
    """The thoughts before the answer: one line, with all of them below when ``opened``."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self._lines = TextLines(parts.thinking.strip("\n"))
        self._title = Static(classes="title", markup=False)
        self._parts = parts
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

    def show(self, parts: Parts) -> None:
        """Replace what is known."""
        self._parts = parts
        self._lines.set_text(parts.thinking.strip("\n"))
        self._say()

    def on_click(self, event: Click) -> None:
        """On its title."""
        if event.y == 0:
            self.toggle()

    def toggle(self) -> None:
        self.opened = not self.opened
        self.set_class(self.opened, "-opened")
        self._say()

    def _say(self) -> None:
        mark = "▾" if self.opened else "▸"
        doing = "Thinking" if self._parts.thinks else "Thought"
        about = f": {self._parts.tokens}" if self._parts.tokens else ""
        how = "" if self.opened else " (space opens)"
        self._title.update(f"{mark} {doing}{about}{how}")


class AnswerBody(Column, Vertical):
    """``ended`` when ``parts`` is all of it; else ``show`` it again and again as it grows."""

    def __init__(self, parts: Parts, *, ended: bool) -> None:
        super().__init__()
        self.text = ""  # the source that is shown, without the thinking
        self._splitter = Splitter()
        self._begin = parts if ended else Parts()
        self._later = None if ended else parts
        self.thought: Thought | None = None
        self.sections: list[Prose | CodeBlock] = []  # one for each of the splitter's

    def compose(self) -> ComposeResult:
        """A text that has ended, all at once."""
        parts = self._begin
        if parts.thinking:
            self.thought = Thought(parts)
            yield self.thought
        self.text = parts.text
        self._splitter = Splitter(parts.text)
        for section in self._splitter.sections:
            yield from self._show(section, ended=True)

    async def on_mount(self) -> None:
        if self._later is not None:
            await self.show(self._later)

    async def show(self, parts: Parts, *, ended: bool = False) -> None:
        """Show ``parts``, of which as a rule only the end is new."""
        if not parts.text.startswith(self.text):
            self.text, self._splitter, self.sections, self.thought = "", Splitter(), [], None
            await self.remove_children()
        if parts.thinking:
            if self.thought is None:
                self.thought = Thought(parts)
                await self.mount(self.thought, before=0)
            self.thought.show(parts)
        self._splitter.feed(parts.text[len(self.text) :], last=ended)
        self.text = parts.text
        if self.sections:
            last, known = self.sections[-1], self._splitter.sections[len(self.sections) - 1]
            await last.grow(known.text[len(last.text) :])
        for section in self._splitter.sections[len(self.sections) :]:
            if self.sections:
                await self.sections[-1].end()
            await self.mount_all(self._show(section))
        if ended and self.sections:
            await self.sections[-1].end()

    def _show(self, section: Section, *, ended: bool = False) -> Iterator[Widget]:
        """Widgets for a section that begins."""
        made: Prose | CodeBlock = (
            CodeBlock(section.text, section.language, ended=ended)
            if section.code
            else Prose(section.text, ended=ended)
        )
        self.sections.append(made)
        yield made
