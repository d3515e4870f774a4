"""``ChatFrame``: the widgets of the chat, and what they show of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from app.chat import slash
from app.chat.answering import Answering, Permission
from app.chat.budget import Shortage, WayOut, measure
from app.chat.conversation import Conversation
from app.chat.host import EngineHost, HostState
from app.chat.sampling_form import form_words, from_mapping
from app.chat.session import Session
from app.chat.store.records import Message, State
from app.chat.turn import AnswerProgress, Turn
from app.figures import rate
from app.tools.calls import ToolCall
from app.tui.app import app_of, services_of
from app.tui.keys import told
from app.tui.services import Services
from app.tui.textual_patches import background, latest
from app.tui.widgets.chat_sidebar import ChatSidebar
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.prompt import Prompt, PromptHistory, SlashMenu
from app.tui.widgets.prompt_box import PromptBox, QueuedMessages
from app.tui.widgets.transcript import ChatTitle, Transcript
from runtimes.errors import IngotError
from runtimes.request import SamplingParams

if TYPE_CHECKING:
    from app.models.catalog import ModelEntry

_PROMPTS = 500
_PAUSE_S = 0.3  # of typing, before tokens are counted
_KEEP_S = 0.5  # after a key, until what was typed is on disk
_TICK_S = 0.05
_LOOK_S = 0.1  # while no answer is written
_MOST_OFTEN_S = 0.125
_LEAST_OFTEN_S = 0.33
_SHARE = 0.03  # of one core
_FIGURES_S = 0.5  # those that one reads change no more often: each is drawn in a place of its own


class ShowingPace:
    """How often to show what has come: an engine uses every core, and waits for each of them, so
    that it loses what showing takes. ``interval`` says how long to wait between two showings."""

    def __init__(self) -> None:
        self.interval = _LEAST_OFTEN_S  # the first ones take most
        self._last: float | None = None

    def showing(self) -> None:
        """One begins. Painting comes after it, and is counted when the next one begins."""
        used = time.thread_time()
        if self._last is not None:
            wanted = min(_LEAST_OFTEN_S, max(_MOST_OFTEN_S, (used - self._last) / _SHARE))
            self.interval += (wanted - self.interval) / 4  # one slow picture changes little
        self._last = used


class ChatFrame(ModeScreen):
    """Shows the chat of a ``Session``, and the answer as it comes: the ``ChatView`` of an
    ``Answering``."""

    def __init__(self) -> None:
        super().__init__()
        self.transcript = Transcript()
        self.sidebar = ChatSidebar()
        self.queued = QueuedMessages()
        self.menu = SlashMenu()
        self.prompt = Prompt(self.menu)
        self.box = PromptBox(self.prompt)
        self.bar = ChatTitle(self.transcript)
        self.notice = Static(id="chat-notice", markup=False)
        self._keeping = False
        self._pace = ShowingPace()
        self._told = float("-inf")  # when the figures were shown
        self._watching = False

    def contents(self) -> ComposeResult:
        self.session = Session(self.services.store, self.host)  # here: they need the app
        self.answer = Answering(self.session, self)
        self.prompt.recall = self.answer.unqueue
        with Horizontal():
            yield self.sidebar
            with Vertical():
                yield self.bar
                yield self.transcript
                with Vertical(id="chat-bottom"):
                    yield self.notice
                    yield self.queued
                    yield self.menu
                    yield self.box

    @on(events.Mount)
    async def _begin(self) -> None:
        """Show the chat that was asked for, or an empty one."""
        app_of(self).engine_changed.subscribe(self, self._engine_changed)
        self.sidebar.set_class(not self.services.config.chat.sidebar, "-hidden")
        start = self.services.start
        self._clock = self.set_interval(1.0, self.show_status, pause=True)
        self.prompt.earlier = PromptHistory(self.services.store.prompts(_PROMPTS))
        self.session.system = start.system or self.services.config.chat.system
        if start.chat is not None:
            await self.open_chat(start.chat)
            if start.system is not None and self.session.shown is not None:
                self.session.shown.update(system=start.system)
        else:
            await self.sync()
        self.show_state()

    def on_unmount(self) -> None:
        self.session.kept.keep(*self.session.unsent(self.prompt.text), durable=True)
        self.answer.close()

    # What it shows, and where from

    @property
    def services(self) -> Services:
        return services_of(self)

    @property
    def host(self) -> EngineHost:
        return self.services.host

    @property
    def path(self) -> Sequence[Message]:
        return self.session.path

    @property
    def turn(self) -> Turn | None:
        return self.answer.turn

    @property
    def typed(self) -> str:
        return self.prompt.text

    @property
    def busy(self) -> bool:
        return self.answer.busy

    def params(self, conversation: Conversation) -> SamplingParams:
        """Sampling as the chat has it, else as the settings say."""
        return from_mapping(conversation.chat.sampling, self.services.config.sampling)

    def load(self, model: str, entry: ModelEntry | None = None) -> None:
        """Load MODEL instead of what is loaded; an answer that is being written ends."""
        if self.turn is not None:
            self.turn.stop()
        app_of(self).load_model(model, entry.options if entry else None)

    # The chat that is shown

    async def open_chat(self, chat: int, message: int | None = None) -> None:
        with self.errors_told():
            conversation = Conversation.open(self.services.store, chat)
            if message is not None:
                conversation.show_message(message)
            await self._show(self.answer.same(conversation))
            if message is not None:
                await self.transcript.reveal(message)

    async def new_chat(self) -> None:
        """An empty chat; the old one is in the list of chats."""
        await self._show(None)
        self.session.system = self.services.config.chat.system

    async def _show(self, conversation: Conversation | None) -> None:
        self.session.show(conversation, self.prompt.text)
        self.prompt.fill(self.session.draft)
        self.answer.give_back_queue()
        await self.show_path()
        self.show_notice()
        self.chat_changed()
        self.prompt.focus()

    async def show_path(self, *, to_end: bool = True) -> None:
        """The messages of the chat, as they are now."""
        await self.sync()
        if to_end:
            await self.transcript.to_end()

    async def sync(self) -> None:
        entries = []
        if self.path:  # imported with the first message
            from app.tui.widgets.message_view import Entry
        for message in self.path:
            among = self.session.conversation.siblings(message.id)
            index = [one.id for one in among].index(message.id)
            entries.append(Entry(message, index + 1, len(among), self._calling(message)))
        await self.transcript.sync(entries)
        self.show_title()

    def _calling(self, message: Message) -> bool:
        round = self.answer.round
        return round is not None and round.message.id == message.id

    def chat_changed(self) -> None:
        """Another chat is shown, or the shown one has changed: other figures, other tokens."""
        if self.turn is None:
            self.answer.forget_figures(self.path)
            self.show_status()
        self.measure()

    # The answer, as it comes

    def look_after(self) -> None:
        """Look after what waits and what is written, until there is neither. Not by a timer: keys
        that the screen handles would wait until a picture of the answer is ready."""
        if not self._watching and self.is_attached:
            self._watching = True
            self.run_worker(self._watch(), group="answer")

    async def _watch(self) -> None:
        try:
            while self.answer.busy:
                if self.turn is not None:
                    self._pace.showing()
                waited = self.answer.figures.ttft_s is None
                progress = self.answer.poll()
                if progress is None:
                    self.show_status()
                    await self._show_calls()
                else:
                    await self._show_progress(progress, waited)
                    if progress.done:
                        self._pace = ShowingPace()
                        await self.answer.ended()
                await self._wait()
            self.show_status()
        finally:
            self._watching = False

    async def _wait(self) -> None:
        """Until it is time to look again; the first piece and the end are shown as they come."""
        until = time.monotonic() + (_LOOK_S if self.turn is None else self._pace.interval)
        while (left := until - time.monotonic()) > 0 and not (self.turn and self.turn.due):
            await asyncio.sleep(min(left, _TICK_S))

    async def _show_progress(self, progress: AnswerProgress, waited: bool) -> None:
        """Show the answer so far; ``waited`` for its first token until now."""
        if progress.warning:
            self.tell_error(progress.warning)
        figures = progress.message.figures
        if progress.done and figures is not None:
            how = "failed" if progress.message.state is State.FAILED else "is there"
            app_of(self).ended(f"the answer {how}", figures.total_s)
        now = time.monotonic()
        tells = progress.done or waited or now - self._told >= _FIGURES_S
        if tells:
            self._told = now
            self.show_status()
        if not self.answer.writes_here or not self.is_current:
            return
        if view := self.transcript.view_of(progress.message.id):
            with self.app.batch_update():  # else it is drawn before all of it is there
                await view.stream(progress.message, progress.tokens)
            if not progress.done:
                view.wait_for(self.answer.reading())
                if tells:
                    view.live(progress.figures, progress.tokens)
        self.transcript.fold()

    async def _show_calls(self) -> None:
        """Show how long the call that is being made takes."""
        round = self.answer.round
        if round is None or not (self.answer.writes_here and self.is_current):
            return
        if view := self.transcript.view_of(round.message.id):
            await view.show_calls(round.running)

    def ask_call(
        self, server: str, call: ToolCall, then: Callable[[Permission | None], Any]
    ) -> None:
        """Ask whether a tool may be called."""
        from app.tui.screens.dialogs import CallScreen

        self.app.push_screen(CallScreen(server, call), then)

    def ask_way_out(self, short: Shortage, then: Callable[[WayOut | None], Any]) -> None:
        """Ask what to leave out of a prompt that does not fit."""
        from app.tui.screens.dialogs import OverflowScreen

        self.app.push_screen(OverflowScreen(short.budget, short.ways), then)

    # The prompt

    def give_back(self, text: str) -> None:
        self.prompt.give_back(text)

    def clear_prompt(self) -> None:
        self.prompt.fill("")

    def sent(self, text: str) -> None:
        """Add a sent text to the earlier prompts, and keep the drafts, which have changed."""
        if text:
            self.prompt.earlier.add(text)
        self.keep_soon()

    def keep_soon(self) -> None:
        """Drafts are on disk a moment after the first key that is not there yet."""
        if not self._keeping:
            self._keeping = True
            self._keep()

    @background
    async def _keep(self) -> None:
        await asyncio.sleep(_KEEP_S)
        self._keeping = False
        await asyncio.to_thread(self.session.kept.keep, *self.session.unsent(self.typed))

    @latest
    async def measure(self) -> None:
        """Count tokens a moment after the last key, in a thread."""
        await asyncio.sleep(_PAUSE_S)
        typed = "" if slash.is_command(self.typed) else self.typed
        conversation, draft = self.session.next_prompt(typed)
        asked = conversation, draft, self.params(conversation)
        try:
            budget = await asyncio.to_thread(measure, self.host, *asked)
        except IngotError:
            return  # no model, or its template refuses: sending will say so
        if self.turn is None:  # else the line tells of the answer
            self.answer.estimate = budget
            self.show_state()

    def _too_long(self) -> list[str]:
        """That an answer might not fit."""
        budget = self.answer.estimate
        said = self.prompt.text.strip() or self.session.attached
        if budget is None or not budget.tight or not said:
            return []
        if budget.over:
            what = f"Too long: the prompt fills the context of {budget.context:,} tokens."
        else:
            what = f"Nearly full: {budget.room:,} tokens are left for the answer."
        return [f"{what} Sending it offers what to leave out."]

    # What is told

    def _engine_changed(self, state: HostState) -> None:
        self.look_after()
        self.show_state()
        self.chat_changed()

    def show_title(self) -> None:
        shown = self.session.shown
        self.bar.show((shown.chat.title if shown else "") or "New chat")
        self.sidebar.show_chat(self.session.chat_id)

    def show_notice(self) -> None:
        """Say what is attached, what the prompt is for, and why nothing comes yet."""
        name, parts = "Text, sent as it is" if self.session.plain else "Message", []
        if (shown := self.session.shown) and (form := form_words(shown.chat.sampling)):
            name = f"{name}, answered with {form}"
        if self.session.editing is not None:
            name = "Edit a message"
            parts.append(
                "Editing an earlier message: [chat.send enter] sends it as a branch,"
                " [chat.stop esc] leaves it"
            )
        self.box.name_it(name)
        self.box.show_files(self.session.attached)
        parts += [*self.answer.notice(), *self._too_long()]
        self.queued.show(self.session.queued)
        self.notice.update(told(self, "\n".join(parts)))
        self.notice.display = bool(parts)

    def useful(self, action: str) -> bool:
        return action != "stop" or self.busy

    def show_state(self) -> None:
        if self.busy:
            self.look_after()
        self.show_notice()
        self.refresh_bindings()
        self.show_status()

    def show_status(self) -> None:
        estimate, app, tps = self.answer.estimate, app_of(self), self.answer.figures.decode_tps
        app.speed, app.decoding = "" if tps is None else rate(tps), self.turn is not None
        note = told(self, self.answer.doing())
        if self.host.state in (HostState.EMPTY, HostState.LOADING):  # seconds are counted
            self._clock.resume()
        else:
            self._clock.pause()
        if self.transcript.welcome.display:
            self.transcript.welcome.show(self.host, note)
        figures = replace(self.answer.figures, note=note)
        if estimate is not None and self.turn is None:
            used, context = estimate.prompt_tokens, estimate.context
            figures = replace(figures, used=used, context=context, estimated=True)
        self.box.show_context(figures)

    def later(self, step: Callable[..., Any], *args: Any) -> object:
        return self.call_later(step, *args)
