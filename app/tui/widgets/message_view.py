"""One message of a chat: the text, in which thinking, prose and code have widgets of their own as
it streams; the calls of tools and what became of it; below it its figures."""

import asyncio
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Click
from textual.widget import Widget
from textual.widgets import Label, ProgressBar

from app.chat.figures import FEW, Reading, StatusFigures
from app.chat.store.records import Message, Role, State
from app.chat.structured import shown
from app.chat.thinking import split
from app.figures import duration, rate
from app.tools.calls import CallState, ToolCall
from app.tui.app import services_of
from app.tui.keys import bind, quiet, told
from app.tui.screens.dialogs import arguments_of
from app.tui.textual_patches import Column, Ground, Plain
from app.tui.widgets.prompt_box import chip, clickable
from app.tui.widgets.prose import CodeBlock, Prose, Section, Splitter
from app.tui.widgets.text_lines import TextLines
from runtimes.untrusted import visible


@dataclass(frozen=True, slots=True)
class Parts:
    """An answer's text: what was thought, and the rest."""

    text: str = ""
    thinking: str = ""
    tokens: str = ""  # length of the thinking in words, "120 tokens"
    thinks: bool = False  # the thinking has not ended


class Folded(Vertical):
    """A line, with a text below it when ``opened``. A click on the line opens or folds it."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.opened = False
        self._title = Plain(classes="title")
        self._lines = TextLines(text)

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._lines

    @abstractmethod
    def say(self) -> None:
        """Say in the line what the text is."""

    def on_click(self, event: Click) -> None:
        if event.y == 0:
            self.toggle(not self.opened)

    def toggle(self, opened: bool) -> None:
        self.opened = opened
        self.set_class(opened, "-opened")
        self.say()


class Thought(Folded):
    """The thoughts before the answer."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.thinking.strip("\n"))
        self._parts = parts

    def on_mount(self) -> None:
        """Say what it is; opened or hidden where the settings say so."""
        wanted = services_of(self).config.thinking
        self.display = wanted != "hidden"
        self.toggle(self.opened or wanted == "shown")

    def show(self, parts: Parts) -> None:
        """Replace what is known."""
        self._parts = parts
        self._lines.set_text(parts.thinking.strip("\n"))
        self.say()

    def say(self) -> None:
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
            yield self._begun(section, ended=True)

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
            await self.mount(self._begun(section))
        if ended and self.sections:
            await self.sections[-1].end()

    def _begun(self, section: Section, *, ended: bool = False) -> Prose | CodeBlock:
        """The widget of a section that begins."""
        made: Prose | CodeBlock = (
            CodeBlock(section.text, section.language, ended=ended)
            if section.code
            else Prose(section.text, ended=ended)
        )
        self.sections.append(made)
        return made


# Calls of tools below an answer: a line for each, with its arguments and result folded in it.


_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ENDED = {
    CallState.DONE: ("✓", "$text-success"),
    CallState.FAILED: ("✗ failed", "$text-error"),
    CallState.REFUSED: ("✗ not made", "$text-error"),
    CallState.CUT: ("✗ cut off", "$text-error"),
}


class CallLine(Folded):
    """One call: its state, name and arguments; below them all of its result."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__()
        self.call = call
        self.said = ""  # the line

    def show(self, call: ToolCall, seconds: float | None, *, waits: bool) -> None:
        """``seconds`` of a call that is being made; ``waits``: it will be asked for."""
        if call is not self.call or not self.said:
            parts = [arguments_of(call), call.result]
            self._lines.set_text("\n\n".join(filter(None, parts)))
        self.call = call
        state, style = _ENDED.get(call.state, ("·" if waits else "✗ no result", "$text-muted"))
        if call.state is CallState.DONE:
            state = f"{state} {duration(call.seconds)}"
        elif seconds is not None:
            state = f"{_FRAMES[int(seconds * 8) % len(_FRAMES)]} {int(seconds)} s"
        fold = "▾" if self.opened else "▸"
        said = call.line
        if call.state in (CallState.FAILED, CallState.REFUSED):
            said = visible(f"{call.name}: {' '.join(call.result[:400].split())}")
        line = Content.assemble(f"{fold} ", (state, style), f"  {said[:400]}")
        if line.plain != self.said:
            self.said = line.plain
            self._title.update(line)

    def say(self) -> None:
        self.show(self.call, None, waits=False)


class CallLines(Vertical):
    """The calls of one answer."""

    def __init__(self) -> None:
        super().__init__()
        self._showing = asyncio.Lock()  # timers and keys come in different tasks

    async def show(
        self, calls: Sequence[ToolCall], running: tuple[ToolCall, float] | None, *, waits: bool
    ) -> None:
        """``running``: the one that is being made, and its seconds."""
        async with self._showing:
            lines = list(self.query(CallLine))
            new = [CallLine(call) for call in calls[len(lines) :]]
            await self.mount_all(new)
        for line, call in zip((*lines, *new), calls, strict=False):
            made = running is not None and running[0].id == call.id
            line.show(call, running[1] if running and made else None, waits=waits)

    def toggle(self) -> None:
        """Open every call, or fold them when all are open."""
        lines = list(self.query(CallLine))
        opened = not all(line.opened for line in lines)
        for line in lines:
            line.toggle(opened)


# The line below a message: which model, which of its branches, and what the answer cost.


_ENDINGS = {
    "stop": "stop",
    "length": "maximum length",
    "context": "context full",
    "deadline": "time was up",
    "cancelled": "stopped",
    "error": "failed",
}
_BETWEEN = 3  # columns between groups, and between facts
_NAME = 4  # rank of the name


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of an answer. Of the facts that do not fit, those of the highest rank go first."""

    text: str
    rank: int
    style: str = ""


class MessageFoot(Widget):
    """``show`` it; one row."""

    def __init__(self, message: int) -> None:
        """``message``: the number of the one above it."""
        super().__init__()
        self._message = message
        self._shown: tuple[str, tuple[int, int], Sequence[Fact]] = ("", (1, 1), ())

    def show(self, name: str, branch: tuple[int, int], facts: Sequence[Fact]) -> None:
        """``branch``: its number (from 1) and how many there are."""
        self.display = branch[1] > 1 or bool(name or facts)
        if self._shown != (new := (name, branch, facts)):
            self._shown = new
            self.refresh()

    def render(self) -> Content:
        width, (model, (index, count), facts) = self.size.width, self._shown
        before, after = clickable("◂ ", "branch(-1)"), clickable(" ▸", "branch(1)")
        marks = Content.assemble(before, f"{index}/{count}", after) if count > 1 else Content()
        taken = marks.cell_length + _BETWEEN if marks else 0
        name = Fact(model, _NAME, "$text-muted")
        kept = fitting((name, *facts), width - taken)
        told = Content(" · ").join(
            Content.styled(fact.text, fact.style) for fact in kept if fact is not name
        )
        right = Content(" " * _BETWEEN).join(filter(None, (marks, told)))
        left = Content.styled(name.text, name.style) if name in kept else Content()
        gap = max(0, width - left.cell_length - right.cell_length)
        return Content.assemble(left, " " * gap, right)

    def action_branch(self, step: int) -> None:
        """By the screen: this widget is taken away with its message."""
        self.screen.call_later(self.screen.run_action, f"branch({step}, {self._message})")


def fitting(facts: Sequence[Fact], width: int) -> list[Fact]:
    """The most important of ``facts`` that fit beside each other into ``width`` columns."""
    kept = [fact for fact in facts if fact.text]
    while kept and sum(cell_len(fact.text) + _BETWEEN for fact in kept) - _BETWEEN > width:
        kept.remove(max(kept, key=lambda fact: fact.rank))
    return kept


def facts_of(message: Message) -> tuple[Fact, ...]:
    """Figures of an answer that has ended; empty when it has none."""
    figures, found = message.figures, list[Fact]()
    if figures is None:
        return ()
    if figures.decode_tps is not None:
        found.append(Fact(rate(figures.decode_tps), 0))
    if figures.completion_tokens:
        found.append(Fact(f"first token {duration(figures.ttft_s)}", 3))
    computed = figures.prompt_tokens - figures.cached_tokens
    if figures.prefill_tps is not None and computed >= FEW:
        found.append(Fact(f"prefill {rate(figures.prefill_tps)} ({computed:,} tokens)", 5))
    elif figures.cached_tokens:
        cached = f"{figures.cached_tokens:,}" if computed > 0 else "all"
        found.append(Fact(f"prompt {tokens(figures.prompt_tokens)}, {cached} cached", 5))
    found.append(Fact(tokens(figures.completion_tokens), 1))
    found.append(Fact(_ENDINGS.get(figures.finish_reason, figures.finish_reason), 2))
    return tuple(found)


def live_facts(figures: StatusFigures, count: int) -> tuple[Fact, ...]:
    """Figures of an answer of ``count`` tokens that is being written."""
    if figures.ttft_s is None:
        return ()
    found = [Fact(f"first token {duration(figures.ttft_s)}", 3), Fact(tokens(count), 1)]
    if figures.decode_tps is not None:
        found.insert(0, Fact(rate(figures.decode_tps), 0, "bold $text-primary"))
    return tuple(found)


def tokens(count: int) -> str:
    """A count in words."""
    return f"{count:,} token{'' if count == 1 else 's'}"


# What stands where an answer will stand: how far the prompt is read, and when it will be done.


class Waiting(Horizontal):
    """``show`` it what the answer waits for."""

    def __init__(self, what: str | Reading) -> None:
        super().__init__()
        self._what = what
        self._said = Label(classes="said", markup=False)
        self._bar = ProgressBar(show_percentage=False, show_eta=False)
        self._left = Label(classes="left", markup=False)

    def compose(self) -> ComposeResult:
        yield self._said
        yield self._bar
        yield self._left

    def on_mount(self) -> None:
        self.show(self._what)

    def show(self, what: str | Reading) -> None:
        self._what = what
        if not self.is_mounted:
            return
        self._bar.display = self._left.display = isinstance(what, Reading)
        if isinstance(what, Reading):
            self._bar.update(total=what.total, progress=what.read)
            self._left.update("" if what.left_s is None else f"{left(what.left_s)} left")
            read = f"{what.read:>{len(f'{what.total:,}')},}"
            self._said.update(f"Reading {read} of {what.total:,} tokens")
        else:
            self._said.update(what[:1].upper() + what[1:])


def left(seconds: float) -> str:
    """In whole seconds: what is estimated has no tenths."""
    return "less than 1 s" if seconds < 1 else duration(math.ceil(seconds)).replace(".0 s", " s")


# A message.


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
        if isinstance(self.body, AnswerBody) and (thought := self.body.thought) is not None:
            thought.toggle(not thought.opened)
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
