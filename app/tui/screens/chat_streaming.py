"""Asking, and showing the answer as it comes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from textual import work

from app.chat.budget import LEAST, Budget, Draft, WayOut, measure, more_of, ways_out
from app.chat.conversation import Conversation
from app.chat.host import HostState
from app.chat.sampling_form import from_mapping
from app.chat.store.records import Message
from app.chat.turn import Progress, Turn
from app.tui.app import app_of
from app.tui.keys import told
from app.tui.screens.chat_base import ChatBase
from app.tui.widgets.pace import Pace
from app.tui.widgets.status_text import StatusFigures
from runtimes.errors import IngotError
from runtimes.request import SamplingParams

_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Before:
    """What was shown and edited before a message was sent: to take it back."""

    leaf: int | None
    editing: int | None


@dataclass(frozen=True, slots=True)
class Wish:
    """An answer that is to be written: to ``parent``, or more of ``continues``."""

    conversation: Conversation
    parent: Message
    continues: Message | None = None
    checked: bool = False  # that it fits was asked
    most: int | None = None  # tokens, where the user has chosen a shorter answer
    before: Before | None = None  # of a parent that was sent just now


class ChatStreaming(ChatBase):
    """One answer at a time, and one that waits for it or for the model. The answer goes on while
    another chat or another mode is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.turn: Turn | None = None
        self.wish: Wish | None = None
        self.estimate: tuple[int, int] | None = None  # tokens that the next prompt has, of context
        self._of: Conversation | None = None  # what the turn writes into
        self._starting = False
        self._read_before: int | None = None  # tokens of prompts, before this one
        self._prompt_tokens = 0
        self._pace = Pace()
        self._watching = False
        self._figures = StatusFigures()

    def on_mount(self) -> None:
        """Listen to the engine."""
        app_of(self).engine_changed.subscribe(self, self._engine_changed)

    @property
    def busy(self) -> bool:
        """An answer is being written, or will be."""
        return self.turn is not None or self.wish is not None or self._starting

    @property
    def writes_here(self) -> bool:
        """The answer that is being written belongs to the chat that is shown."""
        return self._of is not None and self._of is self._conversation

    def _same(self, conversation: Conversation) -> Conversation:
        if self._of is not None and self._of.chat.id == conversation.chat.id:
            return self._of
        return conversation

    def params(self, conversation: Conversation) -> SamplingParams:
        """Sampling as the chat has it, else as the settings say."""
        return from_mapping(conversation.chat.sampling, self.services.config.sampling)

    # Asking

    def ask(
        self,
        parent: Message,
        continues: Message | None = None,
        *,
        checked: bool = False,
        most: int | None = None,
        before: Before | None = None,
    ) -> None:
        """Answer ``parent`` as soon as nothing else is being written and a model is there."""
        self.wish = Wish(self.conversation, parent, continues, checked, most, before)
        self._wake()
        self._next()
        self.show_notice()
        self.show_status()

    def _next(self) -> None:
        """Begin with what waits, if that is possible now."""
        ready = self.services.host.state is HostState.READY
        if self.wish is not None and self.turn is None and not self._starting and ready:
            self._starting = True
            self._start(self.wish)

    @work(thread=True, exit_on_error=False, group="start")
    def _start(self, wish: Wish) -> None:
        """Tokenizes the prompt, so in a thread."""
        try:
            host, params = self.services.host, self.params(wish.conversation)
            if wish.most is not None:
                params = replace(params, max_tokens=wish.most)
            if not wish.checked:
                more = wish.continues
                draft = Draft(parent=wish.parent.id) if more is None else more_of(host, more)
                budget = measure(host, wish.conversation, draft, params.max_tokens)
                if budget.tight if more is None else budget.room < LEAST:
                    ways = ways_out(host, wish.conversation, draft, params.max_tokens)
                    self.call_later(self._is_tight, wish, budget, ways)
                    return
            before = host.tokens_read()
            turn = Turn.start(
                host, wish.conversation, wish.parent, params, continues=wish.continues
            )
        except IngotError as error:
            self.call_later(self._not_started, wish, error)
        except Exception as error:
            self.log.error(str(error))
            self.call_later(self._not_started, wish, error)
        else:
            self.call_later(self._started, wish, turn, before)

    async def _started(self, wish: Wish, turn: Turn, read_before: int | None) -> None:
        self._starting, self._read_before = False, read_before
        self.turn, self._of = turn, wish.conversation
        if self.wish is wish:
            self.wish = None
        else:
            turn.stop()  # it was given up meanwhile
        if self.writes_here:
            if wish.continues is not None:
                view = self.transcript.view_of(turn.message.id)
                if view is not None:
                    await view.stream(turn.message, turn.message.text, 0)
            await self.sync()
            await self.transcript.to_end()
        self.show_notice()
        self._wake()

    def _not_started(self, wish: Wish, error: Exception) -> None:
        self._starting = False
        if self.wish is wish:
            self.wish = None
        self.tell(error)
        self.show_notice()
        self.show_status(now=True)

    async def _is_tight(self, wish: Wish, budget: Budget, ways: list[WayOut]) -> None:
        self._starting = False
        if self.wish is wish:
            self.wish = None
            await self.overflows(wish, budget, ways)
        self.show_notice()
        self.show_status(now=True)

    async def overflows(self, wish: Wish, budget: Budget, ways: list[WayOut]) -> None:
        """The answer that is allowed would not fit into the context."""

    # While it comes

    def _wake(self) -> None:
        if not self._watching and self.is_attached:
            self._watching = True
            self._watch()

    @work(group="answer")
    async def _watch(self) -> None:
        """While there is something to wait for. Not a timer: keys that the screen handles would
        wait until a picture of the answer is ready."""
        try:
            while self.busy:
                await self._tick()
                await asyncio.sleep(_TICK_S if self.turn is None else self._pace.interval)
            self.show_status(now=True)
        finally:
            self._watching = False

    async def _tick(self) -> None:
        self._next()
        if self.turn is None:
            self.show_status()
            return
        with self._pace.measured():
            await self._take(self.turn.poll())

    async def _take(self, progress: Progress) -> None:
        """Show what has come."""
        if progress.warning:
            self.tell(progress.warning)
        self._note(progress)
        if self.writes_here and self.is_current:
            view = self.transcript.view_of(progress.message.id)
            if view is not None:
                await view.stream(progress.message, progress.text, progress.tokens)
                view.wait_for("" if progress.done else self._reading())
                self.transcript.fold()
        if progress.done:
            await self._ended()

    async def _ended(self) -> None:
        here = self.writes_here
        self.turn, self._of = None, None
        self._pace = Pace()
        if here:
            await self.sync()
        self.chat_changed()
        self.show_notice()
        self.show_status(now=True)
        self._next()

    # Stopping

    def action_stop(self) -> None:
        """Stop the answer; what has come is kept, and so is what is in the prompt."""
        if not self.interrupt():
            self.escape()

    def interrupt(self) -> bool:
        """Stop what is being written or waits; False when there is nothing."""
        if self.turn is not None:
            self.turn.stop()
            self.wish = None
            self.show_status(now=True)
        elif self.wish is not None:
            self.wish = None
            self.show_notice()
            self.show_status(now=True)
        else:
            return False
        return True

    def escape(self) -> None:
        """Esc, and nothing is being written."""

    def on_unmount(self) -> None:
        """Keep what has come, and what was typed."""
        self.keep_drafts()
        if self.turn is not None:
            self.turn.close()

    # What is told about it

    def _engine_changed(self, state: HostState) -> None:
        self._wake()
        self.show_notice()
        if self.turn is None:
            self.forget_figures()
        else:
            self.show_status(now=True)

    def more_notices(self) -> list[str]:
        """Why nothing comes yet."""
        if self.wish is None:
            return []
        if self.turn is not None:
            where = "" if self.writes_here else " in another chat"
            return [f"Waits until the answer{where} is written. [chat.stop esc] stops that one."]
        match self.services.host.state:
            case HostState.LOADING:
                return ["Waits for the model to load; [chat.stop esc] takes it back."]
            case HostState.EMPTY | HostState.FAILED:
                return [
                    "Waits for a model: [chat.models ctrl+t] chooses one; [chat.stop esc] takes it"
                    " back."
                ]
        return []

    def _note(self, progress: Progress) -> None:
        """Figures for the status line."""
        assert self.turn is not None
        self._figures = StatusFigures(
            decode_tps=progress.decode_tps,
            history=tuple(self.turn.meter.samples[-60:]),
            ttft_s=progress.ttft_s,
            prefill_tps=progress.prefill_tps,
            used=progress.context_used,
            context=progress.context,
        )
        self._prompt_tokens = progress.prompt_tokens
        self.estimate = None
        self.show_status(now=progress.done)

    def show_status(self, *, now: bool = False) -> None:
        """The line at the bottom."""
        host, figures = self.services.host, self._figures
        used, context, about = figures.used, figures.context, False
        if self.estimate is not None and self.turn is None:
            (used, context), about = self.estimate, True
        self.status.show(
            StatusFigures(
                note=self._doing(),
                decode_tps=figures.decode_tps,
                history=figures.history,
                ttft_s=figures.ttft_s,
                prefill_tps=figures.prefill_tps,
                used=used,
                context=context,
                estimated=about,
                model=host.label,
                details=host.details,
            ),
            now=now,
        )

    def _doing(self) -> str:
        match self.services.host.state:
            case HostState.LOADING:
                return "loading the model"
            case HostState.EMPTY:
                return told(self, "no model ([chat.models ctrl+t])")
            case HostState.FAILED:
                return told(self, "the model did not load ([chat.models ctrl+t])")
        if self.turn is not None and self.turn.stopping:
            return "stopping"
        if self._starting:
            return "reading the prompt"
        if (reading := self._reading()) != "":
            return reading
        return "continues your text" if self.services.host.plain else ""

    def _reading(self) -> str:
        """How far the prompt is read; empty as soon as the answer comes."""
        if self.turn is None or self._figures.ttft_s is not None:
            return ""
        if self.turn.stopping:
            return "stopping: the part of the prompt that is being read ends first"
        before, host = self._read_before, self.services.host
        read = None if before is None else host.reads(before)
        if read is None or not self._prompt_tokens:
            return "reading the prompt"
        return f"reading {min(read, self._prompt_tokens):,} of {self._prompt_tokens:,} tokens"

    def forget_figures(self) -> None:
        """Another chat or model: the last answer's figures, if it has any and they are of the model
        whose name stands beside them."""
        answer = next((m for m in reversed(self.path) if m.figures), None)
        host = self.services.host
        engine = host.engine
        same = answer is not None and host.label in ("", answer.model)
        last = answer.figures if answer is not None and same else None
        self._figures = StatusFigures()
        if last is not None:
            self._figures = StatusFigures(
                decode_tps=last.decode_tps,
                ttft_s=last.ttft_s,
                prefill_tps=last.prefill_tps,
                used=last.prompt_tokens + last.completion_tokens,
                context=engine.context if engine else None,
            )
        self.show_status(now=True)
