"""The chat: what one types and what it does."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import PurePath
from typing import ClassVar

from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import Markdown, TextArea
from textual.worker import get_current_worker

from app.chat import slash
from app.chat.budget import Budget, Draft, Way, WayOut, measure, ways_out
from app.chat.conversation import Conversation
from app.chat.host import HostState
from app.tui.screens.chat_commands import ChatCommands
from app.tui.screens.chat_streaming import Before, Wish
from app.tui.widgets.prompt import Prompt
from app.tui.widgets.transcript import Transcript
from runtimes.errors import IngotError

_PROMPTS = 500
_PAUSE_S = 0.3  # of typing, before tokens are counted


class ChatScreen(ChatCommands):
    """The base screen of the chat mode."""

    HELP = """
    Chat with the loaded model. **[chat.stop esc]** stops an answer and keeps what has come.
    **[chat.select ctrl+up]** goes to the messages: up and down select one, and then
    **[chat.regenerate ctrl+r]** asks again, **[message.edit e]** edits, **[chat.copy ctrl+y]**
    copies, **[message.thinking space]** opens what the model thought, **[chat.before alt+←]** and
    **[chat.after alt+→]** show another branch.
    """
    CSS_PATH: ClassVar[str | PurePath | list[str | PurePath] | None] = [
        "chat.tcss",
        "../widgets/message_view.tcss",
        "../widgets/transcript.tcss",
        "../widgets/prompt.tcss",
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", id="chat.stop", tooltip="the answer"),
        Binding("ctrl+n", "new", "New", id="chat.new", tooltip="an empty chat", priority=True),
        Binding(
            "ctrl+o",
            "chats",
            "Chats",
            id="chat.chats",
            tooltip="earlier ones, and search",
            priority=True,
        ),
        Binding(
            "ctrl+t", "models", "Model", id="chat.models", tooltip="load another one", priority=True
        ),
        Binding(
            "ctrl+r",
            "regenerate",
            "Again",
            id="chat.regenerate",
            tooltip="regenerate the answer, in a branch",
            priority=True,
        ),
        Binding(
            "alt+e,ctrl+e",  # not before the prompt: ctrl+e is its end of a line
            "edit",
            "Edit",
            id="chat.edit",
            tooltip="a message of yours, in a branch",
            show=False,
        ),
        Binding(
            "ctrl+g",
            "continue",
            "Go on",
            id="chat.continue",
            tooltip="continue an answer that was cut",
            show=False,
            priority=True,
        ),
        Binding(
            "alt+left", "branch(-1)", "Branch before", id="chat.before", show=False, priority=True
        ),
        Binding(
            "alt+right", "branch(1)", "Branch after", id="chat.after", show=False, priority=True
        ),
        Binding(
            "ctrl+y",
            "copy",
            "Copy",
            id="chat.copy",
            tooltip="the answer, or a block of its code",
            show=False,
            priority=True,
        ),
        Binding(
            "ctrl+s",
            "sampling",
            "Sampling",
            id="chat.sampling",
            tooltip="temperature and the like",
            priority=True,
        ),
        Binding(
            "f7",
            "system",
            "System",
            id="chat.system",
            tooltip="message and presets",
            show=False,
            priority=True,
        ),
        Binding("f8", "attach", "Attach", id="chat.attach", tooltip="a text file", priority=True),
        Binding(
            "f9",
            "export",
            "Export",
            id="chat.export",
            tooltip="to Markdown or JSON",
            show=False,
            priority=True,
        ),
        Binding(
            "ctrl+l",
            "rename",
            "Rename",
            id="chat.rename",
            tooltip="this chat",
            show=False,
            priority=True,
        ),
        Binding("pageup", "page(-1)", "Page up", id="chat.pageup", show=False, priority=True),
        Binding("pagedown", "page(1)", "Page down", id="chat.pagedown", show=False, priority=True),
        Binding("ctrl+end", "end", "To the end", id="chat.end", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.tight = False  # the context is nearly full with what is typed
        self._pause: Timer | None = None

    @on(events.Mount)
    async def _begin(self) -> None:
        """Show the chat that was asked for, or an empty one."""
        start = self.services.start
        self.show_welcome()
        self.prompt.earlier.take(self.services.store.prompts(_PROMPTS))
        self._system = start.system or self.services.config.chat.system
        if start.chat is not None:
            await self.open_chat(start.chat)
            if start.system is not None and self._conversation is not None:
                self._conversation.update(system=start.system)
        else:
            await self.sync()
        self.show_notice()
        self.show_status(now=True)

    def _engine_changed(self, state: HostState) -> None:
        super()._engine_changed(state)
        self.measure()

    # Sending

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        if slash.is_command(event.text):
            await self.run_command(event.text)
        else:
            await self.send(slash.plain(event.text))

    async def send(self, text: str) -> None:
        """Have a message answered. One that does not fit is a draft until room was made."""
        if self.busy and self.wish is not None:
            self.notify(
                "One message waits already; [chat.stop esc] takes it back.", severity="warning"
            )
            self.prompt.give_back(text)
            return
        if self.turn is not None and self.writes_here:
            self.notify("An answer is being written: [chat.stop esc] stops it.", severity="warning")
            self.prompt.give_back(text)
            return
        try:
            tight = await self._tight(text)
        except IngotError as error:
            self.tell(error)
            self.prompt.give_back(text)
            return
        if tight is None:
            await self._store_and_ask(text)
        else:
            self.offer_room(*tight, partial(self._send_so, text))

    async def _tight(self, text: str) -> tuple[Budget, list[WayOut]] | None:
        """What the context holds and how to make room, when ``text`` leaves too little for an
        answer; None when it is enough, or there is no model yet to count with."""
        host = self.services.host
        if host.state is not HostState.READY:
            return None
        conversation, draft = self._next_prompt(text)
        most = self.params(conversation).max_tokens
        budget = await asyncio.to_thread(measure, host, conversation, draft, most)
        if not budget.tight:
            return None
        return budget, await asyncio.to_thread(ways_out, host, conversation, draft, most)

    async def _send_so(self, text: str, way: WayOut | None) -> None:
        """Send what did not fit, in the way that was chosen; None: it is a draft again."""
        most = None
        try:
            match way and way.way:
                case None:
                    self.prompt.give_back(text)
                    self.tell("Not sent: it does not fit into the context.")
                    return
                case Way.DROP_TURNS:
                    assert way is not None
                    self.conversation.drop(way.ids)
                case Way.DROP_FILES:
                    self.attached = []
                case Way.SHORTER:
                    assert way is not None
                    most = way.after.max_tokens
                case Way.NEW_CHAT:
                    attached = self.attached
                    await self.new_chat()
                    self.attached = attached
        except IngotError as error:
            self.tell(error)
            self.prompt.give_back(text)
            return
        await self._store_and_ask(text, checked=True, most=most)

    async def overflows(self, wish: Wish, budget: Budget, ways: list[WayOut]) -> None:
        """What was sent before there was a model to count with, and does not fit, is refused as if
        it were sent now."""
        if wish.before is None or wish.conversation is not self._conversation:
            await super().overflows(wish, budget, ways)
            return
        said, before = wish.parent, wish.before
        try:
            self.conversation.take_back(said.id, before.leaf)
        except IngotError as error:
            self.tell(error)
            return
        self.attached = [*said.attachments, *self.attached]
        if before.editing is not None:
            self._drafts[self.chat_id] = self.prompt.text
            self.prompt.fill("")
            self.editing = before.editing
        await self.sync()
        self.offer_room(budget, ways, partial(self._send_so, said.text))

    async def _store_and_ask(
        self, text: str, *, checked: bool = False, most: int | None = None
    ) -> None:
        before = Before(self._conversation.leaf if self._conversation else None, self.editing)
        try:
            if self.editing is not None:
                message = self.conversation.edit(self.editing, text, self.attached)
            else:
                message = self.conversation.say(text, self.attached)
        except IngotError as error:
            self.tell(error)
            self.prompt.give_back(text)
            return
        draft = self._drafts.pop(self.chat_id, "") if self.editing is not None else ""
        self.editing, self.attached, self.put_aside = None, [], ""
        if self.services.store.draft(message.chat):
            self.services.store.keep_draft(message.chat, "")
        self.prompt.earlier.add(text)
        if draft:
            self.prompt.give_back(draft)
        self.tight = False
        await self.sync()
        await self.transcript.to_end()
        self.ask(message, checked=checked, most=most, before=before)

    def escape(self) -> None:
        """Esc when nothing is being written: out of whatever is open."""
        if self.menu.has_class("-shown"):
            self.menu.hide()
        elif not self.leave_edit():
            self.prompt.focus()

    # Moving

    @on(Prompt.Leave)
    def _to_messages(self) -> None:
        if self.transcript.views:
            self.transcript.select(self.transcript.views[-1])

    @on(Transcript.Left)
    def _to_prompt(self) -> None:
        self.prompt.focus()

    @on(Prompt.Complete)
    def _complete(self) -> None:
        self.complete_command()

    @on(Prompt.Detach)
    def _detach(self) -> None:
        self.detach_last()

    @on(Markdown.LinkClicked)
    def _link(self, event: Markdown.LinkClicked) -> None:
        """A model may link to anything: the address is copied, not opened."""
        self.app.copy_to_clipboard(event.href)
        self.say(f"Address copied: {event.href}")

    def action_page(self, step: int) -> None:
        """Scroll the messages by a page."""
        if step < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)

    def action_end(self) -> None:
        """Follow the end."""
        self.transcript.action_follow()

    # While one types

    @on(TextArea.Changed)
    def _typed(self) -> None:
        self.offer_commands(self.prompt.text)
        self.chat_changed()

    def chat_changed(self) -> None:
        """Tokens of the next prompt, a moment after the last key."""
        if self.turn is None:
            self.forget_figures()
        self.measure()

    def measure(self) -> None:
        """Count tokens a moment after the last key, in a thread."""
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(_PAUSE_S, self._count)

    def _count(self) -> None:
        text = "" if slash.is_command(self.prompt.text) else self.prompt.text
        self._count_tokens(*self._next_prompt(text))

    def _next_prompt(self, text: str) -> tuple[Conversation, Draft]:
        """What would be asked if ``text`` were sent now."""
        conversation = self._conversation or self.unsaved()
        parent = conversation.leaf
        if self.editing is not None:
            parent = conversation.message(self.editing).parent
        return conversation, Draft(text, tuple(self.attached), parent)

    @work(thread=True, exclusive=True, group="measure", exit_on_error=False)
    def _count_tokens(self, conversation: Conversation, draft: Draft) -> None:
        worker = get_current_worker()
        try:
            most = self.params(conversation).max_tokens
            budget = measure(self.services.host, conversation, draft, most)
        except IngotError:
            return  # no model, or its template refuses: sending will say so
        if not worker.is_cancelled:
            self.call_later(self._counted, budget)

    def _counted(self, budget: Budget) -> None:
        if self.turn is not None:
            return  # then the line tells of the answer
        self.estimate = (budget.prompt_tokens, budget.context)
        self.tight = budget.tight and bool(self.prompt.text.strip() or self.attached)
        self.show_notice()
        self.show_status(now=True)

    def more_notices(self) -> list[str]:
        """That an answer might not fit, too."""
        said = super().more_notices()
        if self.tight and self.estimate is not None:
            left = self.estimate[1] - self.estimate[0]
            what = (
                f"Nearly full: {left:,} tokens are left for the answer."
                if left > 0
                else f"Too long: the prompt fills the context of {self.estimate[1]:,} tokens."
            )
            said.append(f"{what} Sending it offers what to leave out.")
        return said
