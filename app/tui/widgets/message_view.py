"""One message of a chat: the text, in which thinking, prose and code have widgets of their own as
it streams; its figures, and what became of it."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.widget import Widget

from app.chat.figures import Reading, StatusFigures
from app.chat.store.records import Message, Role, State
from app.chat.structured import shown
from app.chat.thinking import split
from app.tools.calls import CallState, ToolCall
from app.tui.app import services_of
from app.tui.keys import bind, quiet, told
from app.tui.textual_patches import Column, Ground, Plain
from app.tui.widgets.call_lines import CallLines
from app.tui.widgets.message_foot import Fact, MessageFoot, Waiting, facts_of, live_facts
from app.tui.widgets.prompt_box import chip
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
        self._title = Plain(classes="title")
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
        self._parts, self._ended = parts, ended  # at the start
        self.thought: Thought | None = None
        self.sections: list[Prose | CodeBlock] = []  # one for each of the splitter's

    def compose(self) -> ComposeResult:
        """A text that has ended, all at once."""
        if not self._ended:
            return
        parts = self._parts
        if parts.thinking:
            self.thought = Thought(parts)
            yield self.thought
        self.text = parts.text
        self._splitter = Splitter(parts.text)
        for section in self._splitter.sections:
            yield from self._show(section, ended=True)

    async def on_mount(self) -> None:
        if not self._ended:
            await self.show(self._parts)

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


_GO_ON = "[chat.continue ctrl+g] continues it, [chat.regenerate ctrl+r] starts over."

_STATES = {
    State.STOPPED: f"Stopped. {_GO_ON}",
    State.CUT: "Cut off at the maximum length. [chat.continue ctrl+g] continues it.",
    State.LOST: "Ingot ended while this was being written; what had come by then is here."
    f" {_GO_ON}",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of the path that is shown: the ``index``-th (from 1) of ``count`` branches."""

    message: Message
    index: int
    count: int
    calling: bool = False  # its calls are being asked for, or made


class MessageView(Ground, Vertical, can_focus=True):
    """Shows an ``Entry``; with the focus on it, it is the selected message."""

    BINDINGS = [
        quiet("up", "message.up", "Message above", action="screen.select(-1)"),
        quiet("down", "message.down", "Message below", action="screen.select(1)"),
        bind("space", "message.thinking", "Thinking, calls", action="thought"),
        bind("enter,e", "message.edit", "Edit and branch", action="screen.edit"),
        bind("c", "message.copy", "Copy", action="screen.copy"),
        bind("r", "message.regenerate", "Again", action="screen.regenerate"),
        bind("delete,ctrl+d", "message.drop", "Leave out", action="screen.drop"),
    ]

    def __init__(self, entry: Entry) -> None:
        super().__init__(classes="-user" if entry.message.role is Role.USER else "-answer")
        self.entry = entry
        self.foot = MessageFoot(entry.message.id)
        self._state = Plain(classes="state")
        self._calls: CallLines | None = None  # mounted with the first call
        self._waiting: Waiting | None = None
        self._ready = False  # Textual says that it is mounted only once ``on_mount`` has ended
        self._coming: int | None = None  # tokens that came before
        self._showing = asyncio.Lock()
        message = entry.message
        self.body: AnswerBody | TextLines
        if message.role is Role.USER:
            self.body = TextLines(message.text)
        else:
            self.body = AnswerBody(_parts(message), ended=message.state is not State.STREAMING)

    @property
    def message(self) -> Message:
        return self.entry.message

    def compose(self) -> ComposeResult:
        message = self.message
        if message.attachments:
            yield Plain(Content("  ").join(map(chip, message.attachments)), classes="files")
        yield self.body
        yield self.foot
        yield self._state

    async def on_mount(self) -> None:
        self._ready = True
        self._say()
        await self.show_calls(None)
        if self._coming is not None:
            await self.stream(self.message, self._coming)

    def show_entry(self, entry: Entry) -> None:
        """Show the message with other branches beside it, or in another state."""
        self.entry = entry
        if self.is_mounted:
            self._say()
            if entry.message.calls:
                self.call_later(self.show_calls, None)

    async def show_calls(self, running: tuple[ToolCall, float] | None) -> None:
        """Show the calls of the answer; ``running`` is being made, for so many seconds."""
        if not (self._ready and self.message.calls):
            return
        if self._calls is None:
            self._calls = CallLines()
            await self.mount(self._calls, before=self.foot)
        elif not self._calls.is_mounted:
            return  # what there is then is shown
        message = self.message
        waits = self.entry.calling or message.state is State.STREAMING
        await self._calls.show(message.calls, running, waits=waits)

    async def stream(self, message: Message, tokens: int) -> None:
        """Show an answer of ``tokens`` tokens so far."""
        self.entry = replace(self.entry, message=message)
        if not self._ready:
            self._coming = tokens
            return
        async with self._showing:  # timers and keys come in different tasks
            if isinstance(self.body, AnswerBody) and self.is_attached:
                ended = message.state is not State.STREAMING
                await self.body.show(_parts(message, tokens), ended=ended)
                await self.show_calls(None)
                if ended:
                    self._say()

    def live(self, figures: StatusFigures, tokens: int) -> None:
        """Say below the answer that is being written how fast it comes."""
        self._show_foot(live_facts(figures, tokens))

    def wait_for(self, what: str | Reading) -> None:
        """Say where the answer will stand what it waits for; "" when it comes."""
        if not self.is_mounted:
            return
        if not what or self.message.state is not State.STREAMING:
            if self._waiting is not None:
                self._waiting.remove()
                self._waiting = None
        elif self._waiting is None:
            self._waiting = Waiting(what)
            self.mount(self._waiting, before=self.foot)
        else:
            self._waiting.show(what)

    def action_thought(self) -> None:
        if isinstance(self.body, AnswerBody) and self.body.thought is not None:
            self.body.thought.toggle()
        if self._calls is not None:
            self._calls.toggle()

    def _say(self) -> None:
        message = self.message
        if message.state is not State.STREAMING:
            self.wait_for("")
        self._show_foot(facts_of(message))
        self._state.say(told(self, state_text(message, calling=self.entry.calling)))
        self.set_class(message.dropped, "-dropped")

    def _show_foot(self, facts: Sequence[Fact]) -> None:
        entry, message = self.entry, self.message
        name = "" if message.role is Role.USER else message.model or "Assistant"
        self.foot.show(name, (entry.index, entry.count), facts)


def _parts(message: Message, tokens: int | None = None) -> Parts:
    """The answer and its thinking. Tokens of the thinking are estimated from its share of the text:
    where one token ends in the text is not kept."""
    whole, streams = message.text, message.state is State.STREAMING
    if "<" not in whole:
        return Parts(shown(whole, ended=not streams))
    found = split(whole, final=not streams)
    thinking = "\n\n".join(part.text for part in found if part.thinking)
    rest = "\n\n".join(part.text for part in found if not part.thinking)
    if not thinking and not any(part.open for part in found):
        return Parts(shown(rest if streams else whole, ended=not streams))
    count = len(message.token_ids) if tokens is None else tokens
    about = round(count * len(thinking) / max(1, len(whole)))
    said = f"about {about:,} token{'s' if about > 1 else ''}" if about else ""
    rest = shown(rest, ended=not streams)
    return Parts(rest, thinking or " ", said, streams and any(part.open for part in found))


def state_text(message: Message, *, calling: bool = False) -> str:
    """The state of an unfinished answer, and what one can do; empty when there is none."""
    figures = message.figures
    said = _STATES.get(message.state, "")
    if message.state is State.FAILED:
        why = f": {message.error}" if message.error else ""
        said = f"Failed{why}. [chat.regenerate ctrl+r] tries again."
    elif message.state is State.CUT and figures and figures.finish_reason == "context":
        said = (
            "Cut off: the context is full. Leave something out ([chat.continue ctrl+g] offers it)"
            " to continue."
        )
    if message.calls and message.state is State.CUT:
        said = "Cut off within a call. /set max_tokens allows more, [chat.regenerate ctrl+r] asks"
        said += " again."
    elif not calling and any(one.state is CallState.OPEN for one in message.calls):
        said = "Its calls were not all made. [chat.continue ctrl+g] asks for them."
    if message.dropped:
        said = f"{said} Left out of what the model is sent.".strip()
    return said
