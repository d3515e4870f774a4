"""``ContextRoom``: sending what was typed, once the context has room for it and an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from textual.timer import Timer
from textual.worker import get_current_worker

from app.chat import slash
from app.chat.budget import Budget, Draft, Shortage, Way, WayOut, measure, shortage
from app.chat.conversation import Conversation
from app.chat.host import HostState
from app.tui.screens.chat_answer import PendingAnswer
from runtimes.errors import IngotError

if TYPE_CHECKING:
    from app.tui.screens.chat import ChatScreen

_PAUSE_S = 0.3  # of typing, before tokens are counted


class ContextRoom:
    """Counts while one types, and asks what to leave out of a prompt that does not fit."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.estimate: Budget | None = None  # of the next prompt; None while an answer's is newer
        self.tight = False  # the context is nearly full with what is typed
        self.pause: Timer | None = None

    # While one types

    def measure(self) -> None:
        """Count tokens a moment after the last key, in a thread."""
        if self.pause is not None:
            self.pause.stop()
        self.pause = self._screen.set_timer(_PAUSE_S, self._begin_count)

    def _begin_count(self) -> None:
        typed = self._screen.prompt.text
        asked = self._screen.session.next_prompt("" if slash.is_command(typed) else typed)
        count = partial(self._count, *asked)
        self._screen.run_worker(
            count, thread=True, exclusive=True, group="measure", exit_on_error=False
        )

    def _count(self, conversation: Conversation, draft: Draft) -> None:
        worker = get_current_worker()
        try:
            most = self._screen.params(conversation).max_tokens
            budget = measure(self._screen.host, conversation, draft, most)
        except IngotError:
            return  # no model, or its template refuses: sending will say so
        if not worker.is_cancelled:
            self._screen.call_later(self._counted, budget)

    def _counted(self, budget: Budget) -> None:
        if self._screen.turn is not None:
            return  # then the line tells of the answer
        self.estimate = budget
        typed = self._screen.prompt.text.strip()
        self.tight = budget.tight and bool(typed or self._screen.session.attached)
        self._screen.show_notice()
        self._screen.show_status(now=True)

    def notice(self) -> list[str]:
        """That an answer might not fit."""
        if not self.tight or self.estimate is None:
            return []
        if self.estimate.over:
            what = f"Too long: the prompt fills the context of {self.estimate.context:,} tokens."
        else:
            what = f"Nearly full: {self.estimate.room:,} tokens are left for the answer."
        return [f"{what} Sending it offers what to leave out."]

    # Sending

    async def send(self, text: str) -> None:
        """Have a message answered. One that does not fit is a draft until room was made."""
        screen = self._screen
        if screen.answer.pending is not None:
            waits = "One message waits already; [chat.stop esc] takes it back."
            screen.notify(waits, severity="warning")
            screen.prompt.give_back(text)
            return
        if screen.turn is not None and screen.answer.writes_here:
            screen.warn_busy()
            screen.prompt.give_back(text)
            return
        try:
            short = await self._shortage(text)
        except IngotError as error:
            self._give_back(text, error)
            return
        if short is None:
            await self._store_and_ask(text)
        else:
            self._offer(short, partial(self._send_so, text))

    async def _store_and_ask(
        self, text: str, *, checked: bool = False, most: int | None = None
    ) -> None:
        screen = self._screen
        try:
            message, before, draft = screen.session.say(text)
        except IngotError as error:
            self._give_back(text, error)
            return
        screen.prompt.earlier.add(text)
        if draft:
            screen.prompt.give_back(draft)
        self.tight = False
        await screen.sync()
        await screen.transcript.to_end()
        conversation = screen.session.conversation
        screen.answer.ask(
            PendingAnswer(conversation, message, checked=checked, most=most, before=before)
        )

    def _give_back(self, text: str, problem: object) -> None:
        self._screen.prompt.give_back(text)
        self._screen.tell(problem)

    async def _shortage(self, text: str) -> Shortage | None:
        """None when nothing is short, or there is no model yet to count with."""
        host = self._screen.host
        if host.state is not HostState.READY:
            return None
        conversation, draft = self._screen.session.next_prompt(text)
        most = self._screen.params(conversation).max_tokens
        return await asyncio.to_thread(shortage, host, conversation, draft, most)

    def _offer(self, short: Shortage, chosen: Callable[[WayOut | None], Awaitable[None]]) -> None:
        from app.tui.screens.overflow import OverflowScreen

        self._screen.app.push_screen(OverflowScreen(short.budget, short.ways), chosen)

    async def refuse(self, pending: PendingAnswer, short: Shortage) -> None:
        """An answer would not fit. Its question, if it was sent before there was a model to count
        with, is refused as if it were sent now."""
        session, said = self._screen.session, pending.parent
        if pending.before is None or pending.conversation is not session.shown:
            self._offer(short, partial(self._leave_out, pending))
            return
        try:
            session.take_back(said, pending.before, self._screen.prompt.text)
        except IngotError as error:
            self._screen.tell(error)
            return
        if pending.before.editing is not None:
            self._screen.prompt.fill("")
        await self._screen.sync()
        self._offer(short, partial(self._send_so, said.text))

    async def _send_so(self, text: str, way: WayOut | None) -> None:
        """Send what did not fit, in the way that was chosen; None: it is a draft again."""
        screen, most = self._screen, None
        if way is None:
            self._give_back(text, "Not sent: it does not fit into the context.")
            return
        try:
            match way.way:
                case Way.DROP_TURNS:
                    screen.session.conversation.drop(way.ids)
                case Way.DROP_FILES:
                    screen.session.attached = []
                case Way.SHORTER:
                    most = way.after.max_tokens
                case Way.NEW_CHAT:
                    attached = screen.session.attached
                    await screen.new_chat()
                    screen.session.attached = attached
        except IngotError as error:
            self._give_back(text, error)
            return
        await self._store_and_ask(text, checked=True, most=most)

    async def _leave_out(self, pending: PendingAnswer, way: WayOut | None) -> None:
        """Answer a stored message in the way that was chosen."""
        screen, asked = self._screen, pending.parent
        conversation = screen.session.shown
        if conversation is None or pending.conversation is not conversation:
            return
        if way is None:
            if pending.continues is None:
                screen.say(
                    "Not sent to the model. [chat.regenerate ctrl+r] asks again, /edit changes it."
                )
            return
        continues, most = pending.continues, None
        try:
            match way.way:
                case Way.DROP_TURNS:
                    conversation.drop(way.ids)
                case Way.DROP_FILES:
                    asked, continues = conversation.edit(asked.id, asked.text, ()), None
                case Way.SHORTER:
                    most = way.after.max_tokens
                case Way.NEW_CHAT:
                    await screen.new_chat()
                    conversation, continues = screen.session.conversation, None
                    asked = conversation.say(asked.text, asked.attachments)
            screen.answer.ask(
                PendingAnswer(conversation, asked, continues, checked=True, most=most)
            )
        except IngotError as error:
            screen.tell(error)
        await screen.sync()
