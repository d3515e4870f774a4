"""``AnswerController``: asking, and showing the answer as it comes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from app.chat.budget import DraftMessage, Shortage, more_of, shortage
from app.chat.conversation import Conversation
from app.chat.figures import StatusFigures
from app.chat.host import HostState
from app.chat.reading import Reading, ReadMeter
from app.chat.session import Before
from app.chat.store.records import Message
from app.chat.turn import AnswerProgress, Turn
from runtimes.errors import IngotError

if TYPE_CHECKING:
    from app.tui.screens.chat import ChatScreen

log = logging.getLogger(__name__)

_TICK_S = 0.05
_LOOK_S = 0.1  # while no answer is written
_WITHOUT_MODEL = {
    HostState.LOADING: "loading the model",
    HostState.EMPTY: "no model ([chat.models ctrl+t])",
    HostState.FAILED: "the model did not load ([chat.models ctrl+t])",
}
_MOST_OFTEN_S = 0.125
_LEAST_OFTEN_S = 0.33
_SHARE = 0.03  # of one core
_FIGURES_S = 0.5  # those that one reads change no more often: each is drawn in a place of its own


class ShowingPace:
    """How often to show what has come: an engine uses every core, and waits for each of them, so
    that it loses what showing takes. ``interval`` says how long to wait between two showings."""

    def __init__(self, used: Callable[[], float] = time.thread_time) -> None:
        """``used``: seconds that this thread has had of a core."""
        self.interval = _LEAST_OFTEN_S  # the first ones take most
        self._used = used
        self._last: float | None = None

    def showing(self) -> None:
        """One begins. Painting comes after it, and is counted when the next one begins."""
        used = self._used()
        if self._last is not None:
            wanted = min(_LEAST_OFTEN_S, max(_MOST_OFTEN_S, (used - self._last) / _SHARE))
            self.interval += (wanted - self.interval) / 4  # one slow picture changes little
        self._last = used


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer that is to be written: to ``parent``, or more of ``continues``."""

    conversation: Conversation
    parent: Message
    continues: Message | None = None
    checked: bool = False  # that it fits was asked
    most: int | None = None  # tokens, where the user has chosen a shorter answer
    before: Before | None = None  # of a parent that was sent just now


class AnswerController:
    """One answer at a time, and one that waits for it or for the model. The answer goes on while
    another chat or another mode is shown.

    Of the screen it uses the transcript, and tells it what has changed.
    """

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.turn: Turn | None = None
        self.pending: PendingAnswer | None = None
        self.figures = StatusFigures()  # of the last answer in the shown chat
        self._of: Conversation | None = None  # what the turn writes into
        self._starting = False
        self._read_before: int | None = None  # tokens of prompts, before this one
        self._reads = ReadMeter()
        self._loading_since: float | None = None
        self._prompt_tokens = 0
        self._pace = ShowingPace()
        self._told = float("-inf")  # when the figures were shown
        self._watching = False

    @property
    def busy(self) -> bool:
        """An answer is being written, or will be."""
        return self.turn is not None or self.pending is not None or self._starting

    @property
    def writes_here(self) -> bool:
        """The answer that is being written belongs to the chat that is shown."""
        return self._of is not None and self._of is self._screen.session.shown

    def serves(self, conversation: Conversation | None) -> bool:
        """Whether an answer is being written in this chat, or will be."""
        asked = self.pending.conversation if self.pending is not None else None
        return conversation is not None and conversation in (self._of, asked)

    def same(self, conversation: Conversation) -> Conversation:
        """The object that an answer is being written into, if it is this chat."""
        if self._of is not None and self._of.chat.id == conversation.chat.id:
            return self._of
        return conversation

    # Asking

    def ask(self, pending: PendingAnswer) -> None:
        """Answer as soon as nothing else is being written and a model is there."""
        self.pending = pending
        self.watch()
        self._next()
        self._screen.show_state()

    def _next(self) -> None:
        """Begin with what waits, if that is possible now."""
        ready = self._screen.host.state is HostState.READY
        if self.pending is not None and self.turn is None and not self._starting and ready:
            self._starting = True
            start = partial(self._start, self.pending)
            self._screen.run_worker(start, thread=True, exit_on_error=False, group="start")

    def _start(self, pending: PendingAnswer) -> None:
        """Tokenizes the prompt, so in a thread."""
        later, host = self._screen.call_later, self._screen.host
        conversation, more = pending.conversation, pending.continues
        try:
            params = self._screen.params(conversation)
            if pending.most is not None:
                params = replace(params, max_tokens=pending.most)
            if not pending.checked:
                draft = (
                    DraftMessage(parent=pending.parent.id) if more is None else more_of(host, more)
                )
                short = shortage(host, conversation, draft, params.max_tokens)
                if short is not None:
                    later(self._not_started, pending, short)
                    return
            before = host.tokens_read()
            turn = Turn.start(host, conversation, pending.parent, params, continues=more)
        except Exception as error:
            if not isinstance(error, IngotError):
                log.exception("asking for an answer")
            later(self._not_started, pending, error)
        else:
            later(self._started, pending, turn, before)

    async def _not_started(self, pending: PendingAnswer, why: Shortage | Exception) -> None:
        self._starting = False
        wanted = self.pending is pending
        if wanted:
            self.pending = None
        self._screen.sender.give_back_queue()
        if wanted or isinstance(why, Exception):
            await self._screen.sender.refuse(pending, why)
        await self._screen.sender.follow_up()
        self._screen.show_state()

    async def _started(self, pending: PendingAnswer, turn: Turn, read_before: int | None) -> None:
        self._starting, self._read_before, self._reads = False, read_before, ReadMeter()
        self.turn, self._of = turn, pending.conversation
        if self.pending is pending:
            self.pending = None
        else:
            turn.stop()  # it was given up meanwhile
        if self.writes_here:
            if pending.continues is not None:
                view = self._screen.transcript.view_of(turn.message.id)
                if view is not None:
                    await view.stream(turn.message, turn.message.text, 0)
            await self._screen.sync()
            await self._screen.transcript.to_end()
        self._screen.show_notice()
        self.watch()

    # While it comes

    def watch(self) -> None:
        """Look after what waits and what is written, until there is neither. Not by a timer: keys
        that the screen handles would wait until a picture of the answer is ready."""
        if not self._watching and self._screen.is_attached:
            self._watching = True
            self._screen.run_worker(self._watch(), group="answer")

    async def _watch(self) -> None:
        try:
            while self.busy:
                self._next()
                if self.turn is None:
                    self._screen.show_status()
                else:
                    self._pace.showing()
                    await self._take(self.turn.poll())
                await self._wait()
            self._screen.show_status()
        finally:
            self._watching = False

    async def _wait(self) -> None:
        """Until it is time to look again; the first piece and the end are shown as they come."""
        until = time.monotonic() + (_LOOK_S if self.turn is None else self._pace.interval)
        while (left := until - time.monotonic()) > 0 and not (self.turn and self.turn.due):
            await asyncio.sleep(min(left, _TICK_S))

    async def _take(self, progress: AnswerProgress) -> None:
        """Show what has come."""
        assert self.turn is not None
        if progress.warning:
            self._screen.tell(progress.warning)
        now, waited = time.monotonic(), self.figures.ttft_s is None
        tells = progress.done or waited or now - self._told >= _FIGURES_S
        self.figures = progress.figures
        self._prompt_tokens = progress.prompt_tokens
        self._screen.sender.estimate = None
        if tells:
            self._told = now
            self._screen.show_status()
        if self.writes_here and self._screen.is_current:
            view = self._screen.transcript.view_of(progress.message.id)
            if view is not None:
                with self._screen.app.batch_update():  # else it is drawn before all of it is there
                    await view.stream(progress.message, progress.text, progress.tokens)
                if not progress.done:
                    view.wait_for(self._reading())
                    if tells:
                        view.live(progress.figures, progress.tokens)
                self._screen.transcript.fold()
        if progress.done:
            await self._ended()

    async def _ended(self) -> None:
        assert self.turn is not None
        here, answer = self.writes_here, self.turn.message
        self.turn, self._of = None, None
        self._pace = ShowingPace()
        if here:
            await self._screen.sync()
        await self._screen.sender.follow_up(answer)
        self._screen.chat_changed()
        self._screen.show_state()
        self._next()

    # Stopping

    def interrupt(self) -> bool:
        """Stop what is being written or waits; False when there is nothing."""
        if self.turn is not None:
            self.turn.stop()
        elif self.pending is None:
            return False
        self.pending = None
        self._screen.sender.give_back_queue()
        self._screen.call_later(self._screen.sender.follow_up)
        self._screen.show_state()
        return True

    def close(self) -> None:
        if self.turn is not None:
            self.turn.close()

    # What is told about it

    def notice(self) -> list[str]:
        """Why nothing comes yet."""
        if self.pending is None:
            return []
        if self.turn is not None:
            where = "" if self.writes_here else " in another chat"
            return [f"Waits until the answer{where} is written. [chat.stop esc] stops that one."]
        match self._screen.host.state:
            case HostState.READY:
                return []
            case HostState.LOADING:
                what = "the model to load; "
            case _:
                what = "a model: [chat.models ctrl+t] chooses one; "
        return [f"Waits for {what}[chat.stop esc] takes it back."]

    def doing(self) -> str:
        """What the engine is at, where that is not to be seen in the chat."""
        host = self._screen.host
        if (said := _WITHOUT_MODEL.get(host.state)) is not None:
            if host.state is not HostState.LOADING:
                return said
            if self._loading_since is None:
                self._loading_since = time.monotonic()
            seconds = int(time.monotonic() - self._loading_since)
            return f"{said}, {seconds} s" if seconds else said
        self._loading_since = None
        if self.turn is not None and self.turn.stopping:
            return "stopping"
        if self._starting:
            return "reading the prompt"
        return "continues your text" if self.turn is None and self._screen.plain else ""

    def _reading(self) -> str | Reading:
        """How far the prompt is read; empty as soon as the answer comes."""
        if self.turn is None or self.figures.ttft_s is not None:
            return ""
        if self.turn.stopping:
            return "stopping: the part of the prompt that is being read ends first"
        before, host = self._read_before, self._screen.host
        read = None if before is None else host.reads(before)
        if read is None or not self._prompt_tokens:
            return "reading the prompt"
        return self._reads.at(time.monotonic(), read, self._prompt_tokens)

    def forget_figures(self) -> None:
        """Another chat or model: the last answer's figures, if it has any and they are of the model
        whose name stands beside them."""
        answer = next((m for m in reversed(self._screen.path) if m.figures), None)
        host = self._screen.host
        self.figures = StatusFigures()
        if answer is not None and answer.figures and host.label in ("", answer.model):
            last = answer.figures
            self.figures = StatusFigures(
                decode_tps=last.decode_tps,
                ttft_s=last.ttft_s,
                prefill_tps=last.prefill_tps,
                used=last.prompt_tokens + last.completion_tokens,
                context=host.engine.context if host.engine else None,
            )
        self._screen.show_status()
