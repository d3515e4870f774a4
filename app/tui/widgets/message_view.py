"""One message of a chat: the text, its figures, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.chat.figures import Reading, StatusFigures
from app.chat.store.records import Message, Role, State
from app.chat.thinking import split
from app.tui.keys import bind, quiet, told
from app.tui.textual_patches import Ground
from app.tui.widgets.answer_body import AnswerBody, Parts
from app.tui.widgets.message_foot import Fact, MessageFoot, Waiting, facts_of, live_facts
from app.tui.widgets.prompt_box import chip
from app.tui.widgets.text_lines import TextLines

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
    index: int = 1
    count: int = 1


class MessageView(Ground, Vertical, can_focus=True):
    """Shows an ``Entry``; with the focus on it, it is the selected message."""

    BINDINGS = [
        quiet("up", "message.up", "Message above", action="screen.select(-1)"),
        quiet("down", "message.down", "Message below", action="screen.select(1)"),
        bind("space", "message.thinking", "Thinking", action="thought"),
        bind("enter,e", "message.edit", "Edit and branch", action="screen.edit"),
        bind("c", "message.copy", "Copy", action="screen.copy"),
        bind("r", "message.regenerate", "Again", action="screen.regenerate"),
        bind("delete,ctrl+d", "message.drop", "Leave out", action="screen.drop"),
    ]

    def __init__(self, entry: Entry) -> None:
        super().__init__(classes="-user" if entry.message.role is Role.USER else "-answer")
        self.entry = entry
        self.foot = MessageFoot(entry.message.id)
        self._state = Static(classes="state", markup=False)
        self._waiting: Waiting | None = None
        self._coming: tuple[str, int] | None = None  # came before this was mounted
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
            yield Static(Content("  ").join(map(chip, message.attachments)), classes="files")
        yield self.body
        yield self.foot
        yield self._state

    async def on_mount(self) -> None:
        self._say()
        if self._coming is not None:
            await self.stream(self.message, *self._coming)

    def show_entry(self, entry: Entry) -> None:
        """Show the message with other branches beside it, or in another state."""
        self.entry = entry
        if self.is_mounted:
            self._say()

    async def stream(self, message: Message, text: str, tokens: int) -> None:
        """``text`` so far of an answer of ``tokens`` tokens."""
        self.entry = replace(self.entry, message=message)
        if not self.is_mounted:
            self._coming = (text, tokens)
            return
        async with self._showing:  # timers and keys come in different tasks
            if isinstance(self.body, AnswerBody) and self.is_attached:
                ended = message.state is not State.STREAMING
                await self.body.show(_parts(message, text, tokens), ended=ended)
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

    def _say(self) -> None:
        message = self.message
        if message.state is not State.STREAMING:
            self.wait_for("")
        self._show_foot(facts_of(message))
        state = state_text(message)
        self._state.update(told(self, state))
        self._state.display = bool(state)
        self.set_class(message.dropped, "-dropped")

    def _show_foot(self, facts: Sequence[Fact]) -> None:
        entry, message = self.entry, self.message
        name = "" if message.role is Role.USER else message.model or "Assistant"
        self.foot.show(name, (entry.index, entry.count), facts)


def _parts(message: Message, text: str | None = None, tokens: int | None = None) -> Parts:
    """The answer and its thinking. Tokens of the thinking are estimated from its share of the text:
    where one token ends in the text is not kept."""
    whole = message.text if text is None else text
    if tokens is None:
        tokens = len(message.token_ids)
    if "<" not in whole:
        return Parts(whole)
    streams = message.state is State.STREAMING
    found = split(whole, final=not streams)
    thinking = "\n\n".join(part.text for part in found if part.thinking)
    rest = "\n\n".join(part.text for part in found if not part.thinking)
    if not thinking and not any(part.open for part in found):
        return Parts(rest if streams else whole)
    about = round(tokens * len(thinking) / max(1, len(whole)))
    said = f"about {about:,} token{'s' if about > 1 else ''}" if about else ""
    return Parts(rest, thinking or " ", said, streams and any(part.open for part in found))


def state_text(message: Message) -> str:
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
    if message.dropped:
        said = f"{said} Left out of what the model is sent.".strip()
    return said
