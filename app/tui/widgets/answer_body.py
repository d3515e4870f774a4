"""The text of an answer as it streams: thinking, prose and code, each in a widget of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from app.tui.widgets.code_block import CodeBlock
from app.tui.widgets.prose import Prose
from app.tui.widgets.segments import Event, Kind, Splitter
from app.tui.widgets.thought import Thought

Section = Prose | CodeBlock


@dataclass(frozen=True, slots=True)
class Parts:
    """An answer's text: what was thought (and its length in words, "120 tokens"), and the rest.
    ``thinks``: the thinking has not ended."""

    text: str = ""
    thinking: str = ""
    tokens: str = ""
    thinks: bool = False


class AnswerBody(Vertical):
    """``ended`` when ``parts`` is all of it; else ``show`` it again and again as it grows."""

    DEFAULT_CSS = """
    AnswerBody { height: auto; visibility: hidden; }
    AnswerBody > * { visibility: visible; }
    AnswerBody > .language { padding: 0 1; margin: 0 2; color: $text-muted; background: $panel; }
    """

    def __init__(self, parts: Parts, *, ended: bool) -> None:
        super().__init__()
        self._source = ""
        self._splitter = Splitter()
        self._blank = ""  # line ends that open no section by themselves
        self._begin = Parts() if not ended else parts
        self._later = None if ended else parts
        self.thought: Thought | None = None
        self.sections: list[Section] = []

    @property
    def text(self) -> str:
        """The source that is shown, without the thinking."""
        return self._source

    @property
    def code_blocks(self) -> list[CodeBlock]:
        return [part for part in self.sections if isinstance(part, CodeBlock)]

    def compose(self) -> ComposeResult:
        """A text that has ended, all at once."""
        parts = self._begin
        if parts.thinking:
            self.thought = Thought(parts.thinking, parts.tokens)
            yield self.thought
        self._source = parts.text
        for section in _ended(self._splitter.feed(parts.text, last=True)):
            if isinstance(section, CodeBlock) and section.language:
                yield _label(section.language)
            self.sections.append(section)
            yield section

    async def on_mount(self) -> None:
        if self._later is not None:
            await self.show(self._later)

    async def show(self, parts: Parts, *, ended: bool = False) -> None:
        """Show ``parts``, of which as a rule only the end is new."""
        if not parts.text.startswith(self._source):
            await self._restart()
        if parts.thinking:
            if self.thought is None:
                self.thought = Thought()
                await self.mount(self.thought, before=0)
            self.thought.show(parts.thinking, parts.tokens, thinking=parts.thinks)
        added = parts.text[len(self._source) :]
        self._source = parts.text
        for event in self._splitter.feed(added, last=ended):
            await self._apply(event)
        if ended:
            await self._end_section()

    async def _apply(self, event: Event) -> None:
        last = self.sections[-1] if self.sections else None
        match event.kind:
            case Kind.PROSE:
                if not isinstance(last, Prose):
                    self._blank += event.text
                    if not self._blank.strip():
                        return
                    await self._open(Prose(self._blank))
                    self._blank = ""
                else:
                    await last.append(event.text)
            case Kind.OPEN:
                await self._end_section()
                if event.text:
                    await self.mount(_label(event.text))
                await self._open(CodeBlock(language=event.text))
            case Kind.CODE:
                assert isinstance(last, CodeBlock)
                last.append(event.text)
            case Kind.CLOSE:
                await self._end_section()
                self._blank = ""

    async def _open(self, section: Section) -> None:
        self.sections.append(section)
        await self.mount(section)

    async def _end_section(self) -> None:
        if self.sections:
            last = self.sections[-1]
            if isinstance(last, Prose):
                await last.end()
            else:
                last.end()

    async def _restart(self) -> None:
        """The text is another one than before."""
        self._source, self._splitter, self._blank = "", Splitter(), ""
        self.sections, self.thought = [], None
        await self.remove_children()


def _ended(events: list[Event]) -> Iterator[Section]:
    """The sections of a whole text."""
    prose = code = language = ""
    coding = False
    for event in events:
        match event.kind:
            case Kind.PROSE:
                prose += event.text
            case Kind.OPEN:
                if prose.strip():
                    yield Prose(prose, ended=True)
                prose, language, coding = "", event.text, True
            case Kind.CODE:
                code += event.text
            case Kind.CLOSE:
                yield CodeBlock(code, language, ended=True)
                code, coding = "", False
    if coding:
        yield CodeBlock(code, language, ended=True)
    if prose.strip():
        yield Prose(prose, ended=True)


def _label(language: str) -> Static:
    return Static(language, classes="language", markup=False)
