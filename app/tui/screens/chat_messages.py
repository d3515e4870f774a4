"""``MessageActions``: what one does with messages: again, edited, further, another branch, copied.

They are about the selected message, else about the last one that fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.chat.figures import can_continue
from app.chat.store.records import Message, Role
from app.chat.thinking import answer_of
from app.tui.screens.chat_answer import PendingAnswer
from app.tui.screens.copy_choice import CopyChoice, choices
from runtimes.errors import IngotError

if TYPE_CHECKING:
    from app.tui.screens.chat import ChatScreen


class MessageActions:
    """Changes the shown conversation, and asks for answers in it."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._at_branch: tuple[int | None, int | None] = (None, None)  # its message, and the leaf

    def _chosen(self, role: Role | None = None) -> Message | None:
        """The selected message; else the last one (of the user, or an answer)."""
        view = self._screen.transcript.selected
        if view is not None:
            return self._screen.session.conversation.message(view.message.id)
        return next((m for m in reversed(self._screen.path) if role in (None, m.role)), None)

    def _question(self, message: Message | None) -> Message | None:
        """``message``, or what it answers."""
        if message is None or message.role is Role.USER or message.parent is None:
            return message
        return self._screen.session.conversation.message(message.parent)

    def _free(self) -> bool:
        """Whether another answer may be asked for; says so if not."""
        if self._screen.busy:
            self._screen.warn_busy()
        return not self._screen.busy

    def _ask(self, parent: Message, continues: Message | None = None) -> None:
        conversation = self._screen.session.conversation
        self._screen.answer.ask(PendingAnswer(conversation, parent, continues))
        self._screen.prompt.focus()

    def regenerate(self) -> None:
        """Another answer, in a branch beside the old one."""
        message = self._question(self._chosen())
        if message is not None and self._free():
            self._ask(message)

    def more(self) -> None:
        """Continue an answer that was cut or stopped."""
        message = self._chosen(Role.ASSISTANT)
        if message is None or not self._free():
            return
        if not can_continue(message) or message.parent is None:
            self._screen.say("This answer is whole. [chat.regenerate ctrl+r] asks for another one.")
            return
        self._ask(self._screen.session.conversation.message(message.parent), message)

    def edit(self) -> None:
        """Change an earlier message of yours; the old branch stays."""
        message = self._question(self._chosen(Role.USER))
        if message is None or not self._free():
            return
        prompt = self._screen.prompt
        self._screen.session.edit(message, prompt.text)
        prompt.fill(message.text)
        prompt.focus()
        self._screen.show_notice()

    async def branch(self, step: int) -> None:
        """The branch before or after, at the selected message or the last one that has several."""
        screen = self._screen
        conversation, view = screen.session.shown, screen.transcript.selected
        message = None
        if view is not None:
            message = view.message
        elif conversation is not None:
            several = (m for m in reversed(screen.path) if len(conversation.siblings(m.id)) > 1)
            message = self._switched() or next(several, None)
        if conversation is None or message is None or len(conversation.siblings(message.id)) < 2:
            screen.say(
                "There is one branch only. [chat.edit alt+e] and [chat.regenerate ctrl+r] make"
                " others."
            )
            return
        try:
            now = conversation.switch(message.id, step)
        except IngotError as error:
            screen.tell(error)
            return
        self._at_branch = (now.id, conversation.leaf)
        await screen.sync()
        if view is not None:
            await screen.transcript.reveal(now.id)
        screen.chat_changed()

    def _switched(self) -> Message | None:
        """The message that was switched to last, while nothing else has changed the branch: the way
        back begins where the way there ended."""
        id, leaf = self._at_branch
        path = self._screen.path
        return next((m for m in path if m.id == id and path[-1].id == leaf), None)

    async def drop(self) -> None:
        """Leave the selected message out of what the model is sent, or take it in again."""
        screen, view = self._screen, self._screen.transcript.selected
        if view is None or (screen.turn is not None and screen.turn.message.id == view.message.id):
            return
        try:
            message = screen.session.conversation.message(view.message.id)
            screen.session.conversation.drop([message.id], not message.dropped)
        except IngotError as error:
            screen.tell(error)
        await screen.sync()
        screen.chat_changed()

    def copy(self) -> None:
        """Copy a message, or a block of code in it."""
        message = self._chosen(Role.ASSISTANT)
        if message is None:
            return
        offered = choices(answer_of(message.text) or message.text)
        if len(offered) == 1:
            self._copy(offered[0].text)
        else:
            self._screen.app.push_screen(CopyChoice(offered), self._copy)

    def _copy(self, text: str | None) -> None:
        """Into the clipboard, through the terminal."""
        if text is None:
            return
        self._screen.app.copy_to_clipboard(text)
        lines = text.count("\n") + 1
        self._screen.say(
            f"Copied {len(text):,} characters, {lines:,} line{'s' if lines > 1 else ''}."
        )
