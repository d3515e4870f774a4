"""``Sender``: what is typed: a slash command, or a message that the context must have room for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from os.path import commonprefix
from typing import TYPE_CHECKING

from textual.timer import Timer
from textual.worker import get_current_worker

from app.chat import slash
from app.chat.budget import DraftMessage, Shortage, TokenBudget, Way, WayOut, measure
from app.chat.conversation import Conversation
from app.chat.session import Before
from app.chat.store.records import Message, State
from app.tui.screens.chat_answer import PendingAnswer
from runtimes.errors import IngotError

if TYPE_CHECKING:
    from app.tui.screens.chat import ChatScreen

_PAUSE_S = 0.3  # of typing, before tokens are counted
_KEEP_S = 0.5  # after a key, until what was typed is on disk


class Sender:
    """Offers commands and counts tokens while one types; asks what to leave out of a prompt that
    does not fit."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self.estimate: TokenBudget | None = (
            None  # of the next prompt; None while an answer's is newer
        )
        self.pause: Timer | None = None
        self._refused: str | None = (
            None  # a command that could not be done, while it stands in the prompt
        )
        self._keeping = False

    # Commands

    def offer(self, text: str) -> None:
        """The menu above the prompt, for what is typed now."""
        if text == self._refused:  # its error is shown
            return
        self._refused = None
        if slash.is_command(text):
            self._screen.menu.offer(self._candidates(text))
        else:
            self._screen.menu.hide()

    def complete(self) -> None:
        """Tab: what is marked, else as far as all that fits agrees."""
        prompt = self._screen.prompt
        if (marked := self._screen.menu.take()) is not None:
            prompt.fill(marked)
        elif offered := [one.text for one in self._candidates(prompt.text)]:
            common = commonprefix(offered)  # noqa: RUF071, letters and not parts of a path
            prompt.fill(common if len(common) > len(prompt.text) else offered[0])

    def _candidates(self, text: str) -> list[slash.SlashChoice]:
        host = self._screen.host
        return slash.candidates(text, [host.model] if host.model else [], host.adapters)

    async def run(self, text: str) -> None:
        """Do what is typed; when it is no command or a wrong one, an error stands above it."""
        screen, prompt = self._screen, self._screen.prompt
        try:
            action = slash.parse(text)
            assert action is not None
            screen.menu.hide()
            typed = prompt.text  # since then: it belongs where the command leads
            prompt.fill("")
            try:
                await screen.app.run_action(action, screen, {"screen": screen})
            finally:
                if typed:
                    prompt.fill(prompt.text + typed)
        except IngotError as error:
            prompt.give_back(text)
            self._refused = prompt.text
            screen.menu.error(str(error))
        else:
            prompt.earlier.reset()

    # Tokens, while one types

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

    def _count(self, conversation: Conversation, draft: DraftMessage) -> None:
        worker = get_current_worker()
        try:
            most = self._screen.params(conversation).max_tokens
            budget = measure(self._screen.host, conversation, draft, most)
        except IngotError:
            return  # no model, or its template refuses: sending will say so
        if not worker.is_cancelled:
            self._screen.call_later(self._counted, budget)

    def _counted(self, budget: TokenBudget) -> None:
        if self._screen.turn is None:  # else the line tells of the answer
            self.estimate = budget
            self._screen.show_state()

    def notice(self) -> list[str]:
        """That an answer might not fit."""
        screen, budget = self._screen, self.estimate
        said = screen.prompt.text.strip() or screen.session.attached
        if budget is None or not budget.tight or not said:
            return []
        if budget.over:
            what = f"Too long: the prompt fills the context of {budget.context:,} tokens."
        else:
            what = f"Nearly full: {budget.room:,} tokens are left for the answer."
        return [f"{what} Sending it offers what to leave out."]

    # Sending

    async def send(self, text: str) -> None:
        """Have a message answered; ``refuse`` is what becomes of one that cannot be."""
        screen = self._screen
        turn, editing = screen.turn, screen.session.editing is not None
        if screen.answer.serves(screen.session.shown) and not editing:
            screen.session.queue(text, after_stop=turn is not None and turn.stopping)
            self.keep_soon()
            screen.show_notice()
        elif screen.answer.pending is not None:
            waits = "One message waits already; [chat.stop esc] takes it back."
            screen.notify(waits, severity="warning")
            screen.prompt.give_back(text)
        elif screen.turn is not None and screen.answer.writes_here:
            screen.warn_busy()
            screen.prompt.give_back(text)
        else:
            await self._say(text)

    async def follow_up(self, answer: Message | None = None) -> None:
        """An answer has ended, or none will come: send what waits for its turn; what waits for an
        answer that is not whole is given back."""
        screen, queues = self._screen, self._screen.session.followups
        if answer is not None:
            queues.answered(answer.chat, answer.id, whole=answer.state in (State.DONE, State.CUT))
        self.give_back_queue()
        found = None if screen.busy else queues.ready()
        if found is None:
            return
        conversation, after, one = found
        before = Before(conversation.leaf, None)
        try:
            message = conversation.say(one.text, one.attachments, after)
        except IngotError as error:
            queues.add(conversation, one)
            self.give_back_queue()
            screen.tell(error)
            return
        screen.prompt.earlier.add(one.text)
        self.keep_soon()
        if conversation is screen.session.shown:
            self.estimate = None
            await screen.sync()
            await screen.transcript.to_end()
        screen.answer.ask(PendingAnswer(conversation, message, before=before))

    def give_back_queue(self) -> None:
        """What waits in the shown chat for an answer that will not come is a draft again."""
        screen, session = self._screen, self._screen.session
        stopping = screen.turn is not None and screen.turn.stopping
        served = screen.answer.serves(session.shown) and not stopping
        if served or not session.followups.stranded(session.chat_id):
            return
        texts = [one.text for one in session.queued]
        while session.unqueue() is not None:  # from the last on: files stay in their order
            pass
        screen.prompt.give_back("\n\n".join(texts))
        screen.show_notice()

    def unqueue(self, at: int = -1) -> bool:
        """Take one message that waits back into the prompt; False when there is none."""
        text = self._screen.session.unqueue(at)
        if text is not None:
            self._screen.prompt.give_back(text)
            self._screen.show_notice()
        return text is not None

    # Drafts, on disk a moment after the first key that is not there yet

    def keep_soon(self) -> None:
        if not self._keeping:
            self._keeping = True
            self._screen.set_timer(_KEEP_S, self._keep)

    def _keep(self) -> None:
        self._keeping = False
        session = self._screen.session
        unsent = session.unsent(self._screen.prompt.text)
        self._screen.run_worker(
            partial(session.keep_drafts, *unsent), thread=True, exit_on_error=False, group="drafts"
        )

    async def _say(self, text: str, *, checked: bool = False, most: int | None = None) -> None:
        screen = self._screen
        try:
            message, before, draft = screen.session.say(text)
        except IngotError as error:
            self._give_back(text, error)
            return
        screen.prompt.earlier.add(text)
        if draft:
            screen.prompt.give_back(draft)
        self.estimate = None
        await screen.sync()
        await screen.transcript.to_end()
        conversation = screen.session.conversation
        screen.answer.ask(PendingAnswer(conversation, message, None, checked, most, before))

    def _give_back(self, text: str, problem: object) -> None:
        self._screen.prompt.give_back(text)
        self._screen.tell(problem)

    async def refuse(self, pending: PendingAnswer, why: Shortage | Exception) -> None:
        """No answer could begin, or none would fit. Its question, if it was sent just now in the
        chat that is shown, is a draft again."""
        screen, said, before = self._screen, pending.parent, pending.before
        draft, shown = None, screen.session.shown
        if before is not None and pending.conversation is shown and shown.leaf == said.id:
            with screen.errors_told():
                screen.session.take_back(said, before, screen.prompt.text)
                draft = said.text
                if before.editing is not None:
                    screen.prompt.fill("")
            await screen.sync()
        if isinstance(why, Shortage):
            from app.tui.screens.dialogs import OverflowScreen

            screen.app.push_screen(
                OverflowScreen(why.budget, why.ways), partial(self._ask_so, pending, draft)
            )
        else:
            screen.prompt.give_back(draft or "")
            screen.tell(why)

    async def _ask_so(self, pending: PendingAnswer, draft: str | None, way: WayOut | None) -> None:
        """Ask what did not fit in the way that was chosen: what is a ``draft`` again, or a message
        that is stored."""
        screen, session, asked = self._screen, self._screen.session, pending.parent
        if draft is None and pending.conversation is not session.shown:
            return
        if way is None and draft is not None:
            self._give_back(draft, "Not sent: it does not fit into the context.")
        elif way is None and pending.continues is None:
            screen.say(
                "Not sent to the model. [chat.regenerate ctrl+r] asks again, /edit changes it."
            )
        if way is None:
            return
        most = way.after.max_tokens if way.way is Way.SHORTER else None
        try:
            if way.way is Way.DROP_TURNS:
                session.conversation.drop(way.ids)
        except IngotError as error:
            screen.tell(error)
            screen.prompt.give_back(draft or "")
            return
        if draft is None and way.way in (Way.DROP_TURNS, Way.SHORTER):
            await screen.sync()
            screen.answer.ask(replace(pending, checked=True, most=most))
            return
        files = asked.attachments if draft is None else session.attached
        if way.way is Way.NEW_CHAT:
            await screen.new_chat()
            session.attached = list(files)
        elif way.way is Way.DROP_FILES:
            if draft is None:
                session.edit(asked, screen.prompt.text)
                screen.prompt.fill("")
            session.attached = []
        await self._say(draft or asked.text, checked=True, most=most)
