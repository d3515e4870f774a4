"""``Answering``: the states of an answer, from what is sent to what is stored.

One answer at a time, and one that waits for it or for the model. The answer goes on while another
chat or another mode is shown. Nothing here knows of widgets: a ``ChatView`` shows what has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, Protocol

from app.chat.budget import DraftMessage, Shortage, TokenBudget, Way, WayOut, more_of, shortage
from app.chat.conversation import Conversation
from app.chat.figures import Reading, ReadMeter, StatusFigures
from app.chat.host import HostState
from app.chat.session import Before, Session
from app.chat.store.records import Message, Role, State
from app.chat.turn import AnswerProgress, Turn
from app.tools.calls import CallState, ToolCall, limit_of
from runtimes.errors import IngotError
from runtimes.request import SamplingParams

if TYPE_CHECKING:
    from app.tools.servers import ToolServers

log = logging.getLogger(__name__)

_WITHOUT_MODEL = {
    HostState.EMPTY: "no model ([chat.models ctrl+t])",
    HostState.FAILED: "the model did not load ([chat.models ctrl+t])",
}


_STARTING = "reading the prompt"
Permission = Literal["once", "always", "no"]


class ChatView(Protocol):
    """View of a chat, implemented by the screen. All methods but ``later`` run in the view's
    thread.
    """

    @property
    def typed(self) -> str:
        """Return the text in the prompt."""

    def params(self, conversation: Conversation) -> SamplingParams:
        """Sampling as the chat has it, else as the settings say."""

    def later(self, step: Callable[..., Any], *args: Any) -> object:
        """Call ``step``, which may be a coroutine, in the view's thread, from any other."""

    def give_back(self, text: str) -> None:
        """Put ``text`` into the prompt, before what is there."""

    def clear_prompt(self) -> None:
        """Empty the prompt."""

    def sent(self, text: str) -> None:
        """A message was sent: it can be had back among earlier ones, and is no draft any more."""

    async def show_path(self, *, to_end: bool = True) -> None:
        """Show the messages of the chat as they are now."""

    def show_state(self) -> None:
        """Show what is written, what waits and why; while the answer is ``busy``, call ``poll``
        several times a second from now on."""

    def chat_changed(self) -> None:
        """Other tokens would be sent next."""

    async def new_chat(self) -> None:
        """Show an empty chat."""

    def ask_way_out(self, short: Shortage, then: Callable[[WayOut | None], Any]) -> None:
        """Ask what to leave out of a prompt that does not fit."""

    def ask_call(
        self, server: str, call: ToolCall, then: Callable[[Permission | None], Any]
    ) -> None:
        """Ask whether a tool may be called; None: nothing more is to be done."""

    def tell_error(self, problem: object) -> None:
        """Tell of an error."""

    def notify(
        self, message: str, *, severity: Literal["information", "warning"] = "information"
    ) -> None:
        """Say something that needs no answer, or why something cannot be done now."""


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer that is to be written: to ``parent``, or more of ``continues``."""

    conversation: Conversation
    parent: Message
    continues: Message | None = None
    checked: bool = False  # that it fits was asked
    most: int | None = None  # tokens, where the user has chosen a shorter answer
    before: Before | None = None  # of a parent that was sent just now


# The calls of one answer, made one after another.


class CallRound:
    """``next`` is the call to ask for, ``make`` or ``refuse`` it, ``poll`` until it has ended: a
    server answers in a thread of its own."""

    def __init__(
        self, conversation: Conversation, message: Message, tools: ToolServers, context: int
    ) -> None:
        """``message`` has open calls; ``context`` is that of the model, in tokens."""
        self.conversation, self.message = conversation, message
        self.stopped = ""  # why no answer follows
        self.tools = tools
        self._context = context
        self._running: Future[ToolCall] | None = None
        self._began = 0.0

    @property
    def running(self) -> tuple[ToolCall, float] | None:
        """The call that is being made, and its seconds so far."""
        if self._running is None:
            return None
        return self.message.calls[self._at], time.monotonic() - self._began

    def next(self) -> ToolCall | None:
        """The call to ask for; None when no more are to be made. Raises StoreError."""
        for number, call in enumerate(self.message.calls):
            if call.state is CallState.OPEN and not self.stopped:
                self._at = number
                why = limit_of(call, self._earlier(), self.tools.settings.calls)
                if why is None:
                    return call
                self.stopped = why
                self._settle(call.ended(CallState.REFUSED, why))
        return None

    def make(self) -> None:
        """Make the call that ``next`` has returned."""
        self._running = self.tools.call(self.message.calls[self._at], self._context)
        self._began = time.monotonic()

    def refuse(self) -> None:
        """The user does not allow it: the model is told so. Raises StoreError."""
        call = self.message.calls[self._at]
        self._settle(call.ended(CallState.REFUSED, "the user did not allow it"))

    def poll(self) -> bool:
        """Whether the call that was being made has ended; it is stored then. Raises StoreError."""
        future = self._running
        if future is None or not future.done():
            return False
        self._running = None
        try:
            self._settle(future.result())
        except CancelledError:
            self.stopped = "the call was cancelled"
        return True

    def cancel(self) -> None:
        """End the call that is being made; it stays open."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def _settle(self, call: ToolCall) -> None:
        calls = list(self.message.calls)
        calls[self._at] = call
        self.message = self.conversation.save_calls(self.message.id, calls)

    def _earlier(self) -> list[ToolCall]:
        """The calls before this one, since the last message of the user."""
        found: list[ToolCall] = []
        for message in self.conversation.path_to(self.message.id):
            found = [] if message.role is Role.USER else [*found, *message.calls]
        return found[: len(found) - len(self.message.calls) + self._at]


class Answering:
    """Used by one thread, the view's."""

    def __init__(self, session: Session, view: ChatView) -> None:
        self._session, self._host, self._view = session, session.host, view
        self.turn: Turn | None = None
        self.pending: PendingAnswer | None = None
        self.round: CallRound | None = None  # the calls that the last answer has made
        self._aside: PendingAnswer | None = None  # waits behind the answer to their results
        self._always: set[tuple[int, str]] = set()  # chats, and tools that may be called in them
        self.figures = StatusFigures()  # of the last answer in the shown chat
        # Of the next prompt; None while an answer's figures are newer.
        self.estimate: TokenBudget | None = None
        self._starting = False
        self._read_before: int | None = None  # tokens of prompts, before this one
        self._reads = ReadMeter()
        self._loading_since: float | None = None

    def _at_work(self) -> bool:
        """Whether an answer is being tokenized or written, or its calls are made."""
        return self._starting or (self.turn or self.round) is not None

    @property
    def busy(self) -> bool:
        """An answer is being written, or will be."""
        return self._at_work() or self.pending is not None

    @property
    def _stopping(self) -> bool:
        """An answer was stopped, and has not ended yet."""
        return self.turn is not None and self.turn.stopping

    def _is_here(self, work: Turn | CallRound | PendingAnswer | None) -> bool:
        return work is not None and work.conversation is self._session.shown

    @property
    def writes_here(self) -> bool:
        """The answer that is being written belongs to the chat that is shown."""
        return self._is_here(self.turn or self.round)

    def _serves(self) -> bool:
        """Whether an answer is being written in the chat that is shown, or will be."""
        return self.writes_here or self._is_here(self.pending)

    def same(self, conversation: Conversation) -> Conversation:
        """The object that an answer is being written into, if it is this chat."""
        work = self.turn or self.round
        if work is not None and work.conversation.chat.id == conversation.chat.id:
            return work.conversation
        return conversation

    # Sending

    async def send(self, text: str) -> None:
        """Have a message answered: now, or behind the answer that is being written here."""
        view, session = self._view, self._session
        if self._serves() and session.editing is None:
            session.queue(text, after_stop=self._stopping)
            view.sent("")
            view.show_state()
        elif self.pending is not None or self.writes_here:
            waits = "One message waits already; [chat.stop esc] takes it back."
            written = "An answer is being written: [chat.stop esc] stops it."
            view.notify(written if self.pending is None else waits, severity="warning")
            view.give_back(text)
        else:
            await self._say(text)

    async def _say(self, text: str, *, checked: bool = False, most: int | None = None) -> None:
        view, session = self._view, self._session
        try:
            message, before, draft = session.say(text)
        except IngotError as error:
            view.give_back(text)
            view.tell_error(error)
            return
        view.sent(text)
        if draft:
            view.give_back(draft)
        await self._ask_said(
            PendingAnswer(session.conversation, message, None, checked, most, before)
        )

    async def _ask_said(self, pending: PendingAnswer) -> None:
        """Show what was said just now, and have it answered."""
        if self._is_here(pending):
            self.estimate = None
            await self._view.show_path()
        self.ask(pending)

    async def follow_up(self, answer: Message | None = None) -> None:
        """An answer has ended, or none will come: send what waits for its turn; what waits for an
        answer that is not whole is given back."""
        view, session = self._view, self._session
        if answer is not None:
            whole = answer.state in (State.DONE, State.CUT)
            session.answered(answer.chat, answer.id, whole=whole)
        self.give_back_queue()
        found = None if self.busy else session.ready()
        if found is None:
            return
        conversation, after, one = found
        before = Before(conversation.leaf, None)
        try:
            message = conversation.say(one.text, one.attachments, after)
        except IngotError as error:
            session.add(conversation, one)
            self.give_back_queue()
            view.tell_error(error)
            return
        view.sent(one.text)
        await self._ask_said(PendingAnswer(conversation, message, before=before))

    def give_back_queue(self) -> None:
        """Make the shown chat's waiting messages drafts again: their answer will not come."""
        session = self._session
        if (self._serves() and not self._stopping) or not session.stranded:
            return
        texts = [one.text for one in session.queued]
        while session.unqueue() is not None:  # from the last on: files stay in their order
            pass
        self._view.give_back("\n\n".join(texts))
        self._view.show_state()

    def unqueue(self, at: int = -1) -> bool:
        """Take one message that waits back into the prompt; False when there is none."""
        text = self._session.unqueue(at)
        if text is not None:
            self._view.give_back(text)
            self._view.show_state()
        return text is not None

    # Asking

    def ask(self, pending: PendingAnswer) -> None:
        """Answer as soon as nothing else is being written and a model is there."""
        self.pending = pending
        self._next()
        self._view.show_state()

    def _next(self) -> None:
        """Begin with what waits, if that is possible now."""
        ready = self._host.state is HostState.READY
        if self.pending is not None and not self._at_work() and ready:
            self._starting = True
            Thread(target=self._start, args=(self.pending,)).start()

    def _start(self, pending: PendingAnswer) -> None:
        """Tokenizes the prompt, so in a thread."""
        later, host = self._view.later, self._host
        conversation, more = pending.conversation, pending.continues
        try:
            self._open_tools(conversation)
            params = self._view.params(conversation)
            if pending.most is not None:
                params = replace(params, max_tokens=pending.most)
            if not pending.checked:
                draft = more_of(host, more) if more else DraftMessage(parent=pending.parent.id)
                short = shortage(host, conversation, draft, params)
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

    def _open_tools(self, conversation: Conversation) -> None:
        """Start the tool servers of a chat that do not run. Blocks."""
        names, tools = conversation.servers(self._host), self._host.tools
        if names and tools is not None:
            for name, problem in tools.open(names).items():
                said = f"{problem}. /tools {name} turns it off."
                self._view.later(partial(self._view.notify, said, severity="warning"))

    async def _not_started(self, pending: PendingAnswer, why: Shortage | Exception) -> None:
        self._starting, wanted = False, self.pending is pending
        if wanted:
            self.pending, self._aside = self._aside, None
        self.give_back_queue()
        if wanted or isinstance(why, Exception):
            await self._refuse(pending, why)
        await self.follow_up()
        self._view.show_state()

    async def _started(self, pending: PendingAnswer, turn: Turn, read_before: int | None) -> None:
        self._starting, self._read_before, self._reads = False, read_before, ReadMeter()
        self.turn = turn
        if self.pending is pending:
            self.pending, self._aside = self._aside, None
        else:
            turn.stop()  # it was given up meanwhile
        if self.writes_here:
            await self._view.show_path()
        self._view.show_state()

    # What could not be asked

    async def _refuse(self, pending: PendingAnswer, why: Shortage | Exception) -> None:
        """No answer could begin, or none would fit. Its question, if it was sent just now in the
        chat that is shown, is a draft again."""
        view, session, said, before = self._view, self._session, pending.parent, pending.before
        draft, shown = None, session.shown
        if before is not None and pending.conversation is shown and shown.leaf == said.id:
            try:
                session.take_back(said, before, view.typed)
                draft = said.text
                if before.editing is not None:
                    view.clear_prompt()
            except IngotError as error:
                view.tell_error(error)
            await view.show_path(to_end=False)
        if isinstance(why, Shortage):
            view.ask_way_out(why, partial(self._ask_so, pending, draft))
        else:
            view.give_back(draft or "")
            view.tell_error(why)

    async def _ask_so(self, pending: PendingAnswer, draft: str | None, way: WayOut | None) -> None:
        """Ask what did not fit in the way that was chosen: what is a ``draft`` again, or a message
        that is stored."""
        view, session, asked = self._view, self._session, pending.parent
        if draft is None and pending.conversation is not session.shown:
            return
        if way is None:
            if draft is not None:
                view.give_back(draft)
                view.tell_error("Not sent: it does not fit into the context.")
            elif pending.continues is None:
                view.notify(
                    "Not sent to the model. [chat.regenerate ctrl+r] asks again, /edit changes it."
                )
            return
        most = way.after.max_tokens if way.way is Way.SHORTER else None
        try:
            if way.way is Way.DROP_TURNS:
                session.conversation.drop(way.ids)
        except IngotError as error:
            view.tell_error(error)
            view.give_back(draft or "")
            return
        if draft is None and way.way in (Way.DROP_TURNS, Way.SHORTER):
            await view.show_path(to_end=False)
            self.ask(replace(pending, checked=True, most=most))
            return
        files = list(asked.attachments) if draft is None else session.attached
        if way.way is Way.NEW_CHAT:
            await view.new_chat()
            session.attached = files
        elif way.way is Way.DROP_FILES:
            if draft is None:
                session.edit(asked, view.typed)
                view.clear_prompt()
            session.attached = []
        await self._say(draft or asked.text, checked=True, most=most)

    # While it comes

    def poll(self) -> AnswerProgress | None:
        """Begin what can begin, and take what has come; None where nothing is being written. Once
        it is done, ``ended`` follows."""
        if self.round is not None:
            self._settled(self.round, self.round.poll)
        self._next()
        if self.turn is None:
            return None
        progress = self.turn.poll()
        self.figures, self.estimate = progress.figures, None
        return progress

    async def ended(self) -> None:
        """The answer is whole, and stored: what waits comes next."""
        assert self.turn is not None
        here, answer, conversation = self.writes_here, self.turn.message, self.turn.conversation
        self.turn = None
        waiting = any(call.state is CallState.OPEN for call in answer.calls)
        if calls := waiting and answer.state is State.DONE:
            self._begin_calls(conversation, answer)
        if here:
            await self._view.show_path(to_end=False)
        if not calls:
            await self.follow_up(answer)
        self._view.chat_changed()
        self._view.show_state()
        self._next()

    def interrupt(self) -> bool:
        """Stop what is being written or waits; False when there is nothing."""
        if self.turn is not None:
            self.turn.stop()
        elif self.round is not None:
            self.round.cancel()
            self.round = None
            self._show_later()
        elif self.pending is None:
            return False
        self.pending = self._aside = None
        self.give_back_queue()
        self._view.later(self.follow_up)
        self._view.show_state()
        return True

    def close(self) -> None:
        """Stop, and store what has come."""
        if self.turn is not None:
            self.turn.close()
        if self.round is not None:
            self.round.cancel()

    # Calls of tools: asked for, made, and answered

    def resume(self, conversation: Conversation, answer: Message) -> None:
        """Make the calls of an answer that are still open, and have their results answered."""
        self._starting = True  # nothing else begins meanwhile

        def open_() -> None:
            try:
                self._open_tools(conversation)
            except Exception as error:
                if not isinstance(error, IngotError):
                    log.exception("starting tool servers")
                self._view.later(self._view.tell_error, error)
            self._view.later(opened)

        def opened() -> None:
            self._starting = False
            self._begin_calls(conversation, answer)
            self._show_later()

        Thread(target=open_).start()
        self._view.show_state()

    def _show_later(self) -> None:
        self._view.later(partial(self._view.show_path, to_end=False))

    def _begin_calls(self, conversation: Conversation, answer: Message) -> None:
        tools, engine = self._host.tools, self._host.engine
        if tools is None or engine is None:
            self._view.tell_error("The tools are not there any more: their calls stay open.")
            return
        self.round = CallRound(conversation, answer, tools, engine.context)
        self._next_call(self.round)

    def _next_call(self, round: CallRound) -> None:
        """Ask for the next call, or make it where it need not be asked for; after the last one,
        have the results answered."""
        try:
            call = round.next()
        except IngotError as error:
            self._view.tell_error(error)
            round.stopped, call = str(error), None
        if call is None:
            self._end_calls(round)
        elif (round.conversation.chat.id, call.name) in self._always:
            round.make()
        else:
            server = round.tools.server_of(call.name)
            self._view.ask_call(server, call, partial(self._permitted, round, call))
        self._view.show_state()

    def _permitted(self, round: CallRound, call: ToolCall, said: Permission | None) -> None:
        if round is not self.round:
            return  # it was stopped meanwhile
        if said is None:
            self.interrupt()
            return
        if said == "always":
            self._always.add((round.conversation.chat.id, call.name))
        if said == "no":
            self._settled(round, round.refuse)
        else:
            round.make()

    def _settled(self, round: CallRound, step: Callable[[], bool | None]) -> None:
        """Go on after ``step``, unless it returns False."""
        try:
            if step() is False:
                return
        except IngotError as error:
            self._view.tell_error(error)
            round.stopped = str(error)
        if self._is_here(round):
            self._show_later()
        self._next_call(round)

    def _end_calls(self, round: CallRound) -> None:
        self.round, answer = None, round.message
        if round.stopped:
            self._view.notify(f"Calls end: {round.stopped}.", severity="warning")
            self._show_later()
            self._view.later(self.follow_up, answer)
        else:
            self._aside = self.pending
            self.ask(PendingAnswer(round.conversation, answer))

    # What is told about it

    def notice(self) -> list[str]:
        """Why nothing comes yet."""
        if self.pending is None:
            return []
        if self.turn is not None:
            where = "" if self.writes_here else " in another chat"
            return [f"Waits until the answer{where} is written. [chat.stop esc] stops that one."]
        state, what = self._host.state, "a model: [chat.models ctrl+t] chooses one; "
        if state is HostState.READY:
            return []
        if state is HostState.LOADING:
            what = "the model to load; "
        return [f"Waits for {what}[chat.stop esc] takes it back."]

    def doing(self) -> str:
        """Activity of the engine that the answer itself does not show."""
        state, now = self._host.state, time.monotonic()
        if state is HostState.LOADING:
            self._loading_since = self._loading_since or now
            seconds = int(now - self._loading_since)
            return f"loading the model, {seconds} s" if seconds else "loading the model"
        if state in _WITHOUT_MODEL:
            return _WITHOUT_MODEL[state]
        self._loading_since = None
        if self.round is not None:
            return "calling a tool" if self.round.running else "waits for your word"
        if self.turn is not None:
            return "stopping" if self._stopping else ""
        if self._starting:
            return _STARTING
        return "continues your text" if self._session.plain else ""

    def reading(self) -> str | Reading:
        """How far the prompt is read; empty as soon as the answer comes."""
        if self.turn is None or self.figures.ttft_s is not None:
            return ""
        if self.turn.stopping:
            return "stopping: the part of the prompt that is being read ends first"
        before = self._read_before
        if before is None or (read := self._host.reads(before)) is None:
            return _STARTING
        return self._reads.at(time.monotonic(), read, self.turn.prompt_tokens)

    def forget_figures(self, path: Sequence[Message]) -> None:
        """Another chat or model: the figures of the last answer of ``path``, if it has any and they
        are of the model whose name stands beside them."""
        self.figures, host = StatusFigures(), self._host
        last, model = next(((m.figures, m.model) for m in reversed(path) if m.figures), (None, ""))
        if last is not None and host.label in ("", model):
            self.figures = StatusFigures(
                decode_tps=last.decode_tps,
                ttft_s=last.ttft_s,
                used=last.prompt_tokens + last.completion_tokens,
                context=host.engine.context if host.engine else None,
            )
