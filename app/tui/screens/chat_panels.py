"""``ChatPanels``: the panels that the chat opens, and what it does with what they end with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.chat.attachments import read_attachment
from app.chat.store.records import Attachment
from app.models.entries import Entry
from app.tui.app import app_of
from app.tui.screens.chats import ChatChoice, ChatsScreen
from app.tui.screens.system import SystemChoice
from runtimes.errors import IngotError

if TYPE_CHECKING:
    from app.tui.screens.chat import ChatScreen


class ChatPanels:
    """Models, chats, title, system message, sampling, files."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def models(self) -> None:
        from app.tui.screens.models import ModelsScreen

        choice = self._screen.host.choice
        current = str(choice.file.path) if choice else None

        def chosen(found: tuple[Entry, ...] | None) -> None:
            if found:
                self._screen.load(found[0].model, found[0])

        self._screen.app.push_screen(ModelsScreen(app_of(self._screen).named, current), chosen)

    def chats(self, query: str = "") -> None:
        """Open an earlier chat, looked for with ``query``."""
        screen = self._screen
        panel = ChatsScreen(screen.services.store, screen.session.chat_id, query)
        screen.app.push_screen(panel, self._chat_chosen)

    async def _chat_chosen(self, choice: ChatChoice | None) -> None:
        screen = self._screen
        if choice is None:
            shown = screen.session.shown
            title = screen.services.store.chat(shown.chat.id).title if shown else ""
            if shown is not None and title != shown.chat.title:
                shown.rename(title)
                screen.show_title()
        elif choice.chat is None:
            await screen.new_chat()
        else:
            await screen.open_chat(choice.chat.id, choice.message)

    async def new(self) -> None:
        if self._screen.session.shown is not None and not self._screen.path:
            self._screen.say("This chat is empty.")
        else:
            await self._screen.new_chat()

    def rename(self) -> None:
        from app.tui.screens.ask import AskScreen

        def named(title: str | None) -> None:
            try:
                if title is not None:
                    self._screen.session.conversation.rename(title)
            except IngotError as error:
                self._screen.tell(error)
            self._screen.show_title()

        title = self._screen.session.conversation.chat.title
        self._screen.app.push_screen(AskScreen("Title of this chat", title), named)

    def attach(self) -> None:
        """A text file that goes with the next message."""
        from app.tui.screens.attach import AttachScreen

        self._screen.app.push_screen(AttachScreen(), self._attach)

    def _attach(self, attachment: Attachment | None) -> None:
        if attachment is not None:
            self._screen.session.attached.append(attachment)
            self._attached_changed()

    def attach_path(self, path: str) -> None:
        """The same, by its path; read in a thread."""
        read = partial(self._read, path)
        self._screen.run_worker(read, thread=True, exit_on_error=False, group="attach")

    def _read(self, path: str) -> None:
        later = self._screen.call_later
        try:
            attached = read_attachment(path)
        except IngotError as error:
            later(self._screen.tell, error)
            return
        if attached.warning:
            later(self._screen.say, attached.warning)
        later(self._attach, attached.attachment)

    def detach_last(self) -> None:
        if self._screen.session.attached:
            self._screen.session.attached.pop()
            self._attached_changed()

    def _attached_changed(self) -> None:
        self._screen.show_notice()
        self._screen.chat_changed()

    def export(self, path: str = "") -> None:
        from app.tui.screens.export import ExportScreen

        def written(file: Path | None) -> None:
            if file is not None:
                self._screen.say(f"Written to {file}")

        if not self._screen.path:
            self._screen.say("There is nothing to export yet.")
            return
        panel = ExportScreen(self._screen.session.conversation, path)
        self._screen.app.push_screen(panel, written)

    def system(self) -> None:
        from app.tui.screens.system import SystemScreen

        def chosen(choice: SystemChoice | None) -> None:
            if choice is not None and choice.sampling is not None:
                self.change(system=choice.system, sampling=dict(choice.sampling))
            elif choice is not None:
                self.change(system=choice.system)

        session = self._screen.session
        chat = session.shown.chat if session.shown else None
        panel = SystemScreen(chat.system if chat else session.system, chat.sampling if chat else {})
        self._screen.app.push_screen(panel, chosen)

    def sampling(self) -> None:
        from app.tui.screens.sampling import SamplingScreen

        def chosen(sampling: Mapping[str, Any] | None) -> None:
            if sampling is not None:
                self.change(sampling=dict(sampling))

        shown = self._screen.session.shown
        panel = SamplingScreen(shown.chat.sampling if shown else {})
        self._screen.app.push_screen(panel, chosen)

    def change(self, **changes: Any) -> None:
        """Change what the chat says of the next answer."""
        try:
            self._screen.session.conversation.update(**changes)
        except IngotError as error:
            self._screen.tell(error)
        self._screen.chat_changed()
