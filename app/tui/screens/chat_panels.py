"""The panels that the chat opens, and what it does with what they end with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from textual import work

from app.chat.attachments import read_attachment
from app.chat.budget import Budget, Way, WayOut
from app.chat.store.records import Attachment
from app.models.entries import Entry
from app.tui.app import app_of
from app.tui.screens.chat_message_actions import ChatMessageActions
from app.tui.screens.chat_streaming import Wish
from app.tui.screens.chats import ChatChoice, ChatsScreen
from app.tui.screens.system import SystemChoice
from runtimes.errors import IngotError


class ChatPanels(ChatMessageActions):
    """Models, chats, system message, sampling, files."""

    def action_models(self) -> None:
        """Choose another model."""
        from app.tui.screens.models import ModelsScreen

        host = self.services.host
        current = str(host.choice.file.path) if host.choice else None
        panel = ModelsScreen(app_of(self).named, current)
        self.app.push_screen(panel, self._model_chosen)

    def _model_chosen(self, chosen: tuple[Entry, ...] | None) -> None:
        if chosen:
            self.load(chosen[0].model, chosen[0])

    def load(self, model: str, entry: Entry | None = None) -> None:
        """Load MODEL instead of what is loaded; an answer that is being written ends."""
        if self.turn is not None:
            self.turn.stop()
        app_of(self).load_model(model, entry.options if entry else None)

    def action_chats(self) -> None:
        """Open an earlier chat."""
        self.app.push_screen(ChatsScreen(self.services.store, self.chat_id), self._chat_chosen)

    async def _chat_chosen(self, choice: ChatChoice | None) -> None:
        if choice is None:
            await self._reread()
        elif choice.chat is None:
            await self.new_chat()
        else:
            await self.open_chat(choice.chat.id, choice.message)

    async def _reread(self) -> None:
        """The chat may have another title now."""
        if self._conversation is not None:
            chat = self.services.store.chat(self._conversation.chat.id)
            if chat.title != self._conversation.chat.title:
                self._conversation.rename(chat.title)
                self.show_title()

    async def action_new(self) -> None:
        """An empty chat."""
        if self._conversation is not None and not self.path:
            self.say("This chat is empty.")
            return
        await self.new_chat()

    def action_rename(self) -> None:
        """Another title for this chat."""
        from app.tui.screens.ask import AskScreen

        title = self.conversation.chat.title
        self.app.push_screen(AskScreen("Title of this chat", title), self.rename)

    def rename(self, title: str | None) -> None:
        """Give the chat a title."""
        if title is None:
            return
        try:
            self.conversation.rename(title)
        except IngotError as error:
            self.tell(error)
        self.show_title()

    def action_attach(self, path: str = "") -> None:
        """A text file that goes with the next message."""
        from app.tui.screens.attach import AttachScreen

        self.app.push_screen(AttachScreen(path), self.attach)

    def attach(self, attachment: Attachment | None) -> None:
        """Have a file go with the next message."""
        if attachment is not None:
            self.attached.append(attachment)
            self.show_notice()
            self.chat_changed()

    @work(thread=True, exit_on_error=False, group="attach")
    def attach_path(self, path: str) -> None:
        """The same, by its path."""
        try:
            attached = read_attachment(path)
        except IngotError as error:
            self.call_later(self.tell, error)
            return
        if attached.warning:
            self.call_later(self.say, attached.warning)
        self.call_later(self.attach, attached.attachment)

    def detach_last(self) -> None:
        """Take the last file away again."""
        if self.attached:
            self.attached.pop()
            self.show_notice()
            self.chat_changed()

    def action_export(self, path: str | None = None) -> None:
        """Write the chat to a file."""
        from app.tui.screens.export import ExportScreen

        if not self.path:
            self.say("There is nothing to export yet.")
            return
        self.app.push_screen(ExportScreen(self.conversation, path), self._exported)

    def _exported(self, path: Path | None) -> None:
        if path is not None:
            self.say(f"Written to {path}")

    def action_system(self) -> None:
        """The system message, and presets."""
        from app.tui.screens.system import SystemScreen

        chat = self._conversation.chat if self._conversation else None
        system = chat.system if chat else self._system
        sampling = chat.sampling if chat else None
        self.app.push_screen(SystemScreen(system, sampling), self._system_chosen)

    def _system_chosen(self, choice: SystemChoice | None) -> None:
        if choice is None:
            return
        changes: dict[str, Any] = {"system": choice.system}
        if choice.sampling is not None:
            changes["sampling"] = dict(choice.sampling)
        self._change(changes)

    def action_sampling(self) -> None:
        """How answers are sampled."""
        from app.tui.screens.sampling import SamplingScreen

        sampling = self._conversation.chat.sampling if self._conversation else {}
        self.app.push_screen(SamplingScreen(sampling), self._sampling_chosen)

    def _sampling_chosen(self, sampling: Mapping[str, Any] | None) -> None:
        if sampling is not None:
            self._change({"sampling": dict(sampling)})

    # When the context is full

    async def overflows(self, wish: Wish, budget: Budget, ways: list[WayOut]) -> None:
        """Offer what could be left out."""
        self.offer_room(budget, ways, partial(self._leave_out, wish))

    def offer_room(
        self,
        budget: Budget,
        ways: list[WayOut],
        chosen: Callable[[WayOut | None], Awaitable[None]],
    ) -> None:
        """Ask what is to be left out."""
        from app.tui.screens.overflow import OverflowScreen

        self.app.push_screen(OverflowScreen(budget, ways), chosen)

    async def _leave_out(self, wish: Wish, way: WayOut | None) -> None:
        if wish.conversation is not self._conversation:
            return
        parent = wish.parent
        try:
            match way and way.way:
                case None if wish.continues is not None:
                    return
                case None:
                    self.say(
                        "Not sent to the model. [chat.regenerate ctrl+r] asks again, /edit changes"
                        " it."
                    )
                    return
                case Way.DROP_TURNS:
                    assert way is not None
                    self.conversation.drop(way.ids)
                    self.ask(parent, wish.continues, checked=True)
                case Way.DROP_FILES:
                    self.ask(self.conversation.edit(parent.id, parent.text, ()), checked=True)
                case Way.SHORTER:
                    assert way is not None
                    self.ask(parent, wish.continues, checked=True, most=way.after.max_tokens)
                case Way.NEW_CHAT:
                    await self.new_chat()
                    self.ask(self.conversation.say(parent.text, parent.attachments), checked=True)
        except IngotError as error:
            self.tell(error)
        await self.sync()

    def _change(self, changes: Mapping[str, Any]) -> None:
        try:
            self.conversation.update(**changes)
        except IngotError as error:
            self.tell(error)
        self.chat_changed()
