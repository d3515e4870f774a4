"""What one does with messages: again, edited, further, the other branch, copied."""

from __future__ import annotations

from app.chat.figures import can_continue
from app.chat.store.records import Message, Role
from app.chat.thinking import answer_of
from app.tui.screens.chat_streaming import ChatStreaming
from app.tui.screens.copy_choice import CopyChoice, choices
from runtimes.errors import IngotError


class ChatMessageActions(ChatStreaming):
    """They are about the selected message, else about the last one that fits."""

    def __init__(self) -> None:
        super().__init__()
        self._at_branch: tuple[int | None, int | None] = (None, None)  # its message, and the leaf

    def chosen(self, role: Role | None = None) -> Message | None:
        """The selected message; else the last one (of the user, or an answer)."""
        view = self.transcript.selected
        if view is not None:
            return self.conversation.message(view.message.id)
        return next((m for m in reversed(self.path) if role in (None, m.role)), None)

    def _free(self) -> bool:
        """Whether another answer may be asked for; says so if not."""
        if self.busy:
            self.notify("An answer is being written: [chat.stop esc] stops it.", severity="warning")
        return not self.busy

    async def action_regenerate(self) -> None:
        """Another answer, in a branch beside the old one."""
        message = self.chosen()
        if message is None or not self._free():
            return
        if message.role is Role.ASSISTANT and message.parent is not None:
            message = self.conversation.message(message.parent)
        self.ask(message)
        self.prompt.focus()

    def action_continue(self) -> None:
        """More of an answer that was cut or stopped."""
        message = self.chosen(Role.ASSISTANT)
        if message is None or not self._free():
            return
        if not can_continue(message) or message.parent is None:
            self.say("This answer is whole. [chat.regenerate ctrl+r] asks for another one.")
            return
        self.ask(self.conversation.message(message.parent), continues=message)
        self.prompt.focus()

    def action_edit(self) -> None:
        """Change an earlier message of yours; the old branch stays."""
        message = self.chosen(Role.USER)
        if message is not None and message.role is Role.ASSISTANT and message.parent is not None:
            message = self.conversation.message(message.parent)
        if message is None or not self._free():
            return
        if self.editing is None:
            self._drafts[self.chat_id] = self.prompt.text
        self.editing = message.id
        self.attached = list(message.attachments)
        self.prompt.fill(message.text)
        self.prompt.focus()
        self.show_notice()

    def leave_edit(self) -> bool:
        """Back to the draft; False when nothing was being edited."""
        if self.editing is None:
            return False
        self.editing, self.attached = None, []
        self.prompt.fill(self.draft())
        self.show_notice()
        return True

    def put_away(self) -> bool:
        """Empty the prompt; walking to earlier prompts brings back what was there. False when there
        was nothing."""
        text = self.prompt.text
        if not text.strip():
            return False
        self.prompt.earlier.add(text)
        if not self.leave_edit():
            self.put_aside = text
            self.prompt.fill("")
        return True

    async def action_branch(self, step: int) -> None:
        """The branch before or after, at the selected message or the last one that has several."""
        view = self.transcript.selected
        if view is not None:
            message: Message | None = view.message
        else:
            several = (m for m in reversed(self.path) if len(self.conversation.siblings(m.id)) > 1)
            message = self._switched() or next(several, None)
        if message is None or len(self.conversation.siblings(message.id)) < 2:
            self.say(
                "There is one branch only. [chat.edit alt+e] and [chat.regenerate ctrl+r] make"
                " others."
            )
            return
        try:
            now = self.conversation.switch(message.id, step)
        except IngotError as error:
            self.tell(error)
            return
        self._at_branch = (now.id, self.conversation.leaf)
        await self.sync()
        if view is not None:
            await self.transcript.reveal(now.id)
        self.chat_changed()

    def _switched(self) -> Message | None:
        """The message that was switched to last, while nothing else has changed the branch: the way
        back begins where the way there ended."""
        id, leaf = self._at_branch
        return next((m for m in self.path if m.id == id and self.path[-1].id == leaf), None)

    async def action_drop(self) -> None:
        """Leave the selected message out of what the model is sent, or take it in again."""
        view = self.transcript.selected
        if view is None or view.message.id in self._written:
            return
        message = self.conversation.message(view.message.id)
        try:
            self.conversation.drop([message.id], not message.dropped)
        except IngotError as error:
            self.tell(error)
        await self.sync()
        self.chat_changed()

    @property
    def _written(self) -> set[int]:
        """The message that is being written."""
        return {self.turn.message.id} if self.turn is not None else set()

    def action_copy(self) -> None:
        """Copy a message, or a block of code in it."""
        message = self.chosen(Role.ASSISTANT)
        if message is None:
            return
        offered = choices(answer_of(message.text) or message.text)
        if len(offered) == 1:
            self.copy_text(offered[0].text)
            return
        self.app.push_screen(CopyChoice(offered), self._copy_chosen)

    def _copy_chosen(self, text: str | None) -> None:
        if text is not None:
            self.copy_text(text)

    def copy_text(self, text: str) -> None:
        """Into the clipboard, through the terminal."""
        self.app.copy_to_clipboard(text)
        lines = text.count("\n") + 1
        self.say(f"Copied {len(text):,} characters, {lines:,} line{'s' if lines > 1 else ''}.")
