"""The chat that is shown: its widgets, and showing another one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer, Static

from app.chat.conversation import Conversation
from app.chat.store.records import Attachment, Chat, Message
from app.tui.app import services_of
from app.tui.keys import told
from app.tui.services import Services
from app.tui.widgets.message_view import Entry, attached_text
from app.tui.widgets.prompt import Prompt
from app.tui.widgets.slash_menu import SlashMenu
from app.tui.widgets.status_line import StatusLine
from app.tui.widgets.transcript import Transcript
from runtimes.errors import IngotError

log = logging.getLogger(__name__)

_WELCOME = (
    ("[chat.models ctrl+t]", "choose a model", "[chat.sampling ctrl+s]", "sampling"),
    ("[chat.chats ctrl+o]", "earlier chats", "[chat.attach F8]", "attach a file"),
    ("[chat.system F7]", "system prompt", "[app.help F1]", "all keys"),
)
_MODES = (
    "[app.compare F3] compare files   [app.batch F4] batch jobs   [app.quantize F5] quantize"
    "   [app.monitor F6] monitor   [app.chat F2] back here"
)


class ChatBase(Screen[None]):
    """A chat is made when its first message is sent, or when something is set for it."""

    AUTO_FOCUS: ClassVar[str | None] = "Prompt"

    def __init__(self) -> None:
        super().__init__()
        self.transcript = Transcript()
        self.menu = SlashMenu()
        self.prompt = Prompt(self.menu)
        self.status = StatusLine()
        self.bar = Static(id="chat-title", markup=False)
        self.notice = Static(id="chat-notice", markup=False)
        self.attached: list[Attachment] = []
        self.editing: int | None = None  # the message that the prompt will replace
        self._conversation: Conversation | None = None
        self._drafts: dict[int | None, str] = {}  # of chats that were shown
        self.put_aside = ""  # what ctrl+c took out of the prompt, until something is sent
        self._system: str | None = None  # for the chat that is not made yet

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self.bar
        yield self.transcript
        yield self.notice
        yield self.menu
        yield self.prompt
        yield self.status
        yield Footer(compact=True, show_command_palette=False)

    @property
    def services(self) -> Services:
        """Store, engine and settings."""
        return services_of(self)

    @property
    def conversation(self) -> Conversation:
        """The chat that is shown, made now if it is none yet. Raises StoreError."""
        if self._conversation is None:
            self._conversation = Conversation.new(
                self.services.store, model=self.services.host.model, system=self._system
            )
            self._drafts[self._conversation.chat.id] = self._drafts.pop(None, "")
        return self._conversation

    def unsaved(self) -> Conversation:
        """A chat that is not stored, as it would be; to count with."""
        chat = Chat(id=0, title="", created=0.0, updated=0.0, system=self._system)
        return Conversation(self.services.store, chat)

    @property
    def path(self) -> Sequence[Message]:
        """The messages that are shown."""
        return self._conversation.path if self._conversation else ()

    @property
    def chat_id(self) -> int | None:
        """None for a chat that has not been made."""
        return self._conversation.chat.id if self._conversation else None

    async def open_chat(self, chat: int, message: int | None = None) -> None:
        """Show a stored chat, at one of its messages."""
        try:
            conversation = Conversation.open(self.services.store, chat)
            if message is not None:
                conversation.show_message(message)
        except IngotError as error:
            self.tell(error)
            return
        await self._show(self._same(conversation))
        if message is not None:
            await self.transcript.reveal(message)

    async def new_chat(self) -> None:
        """An empty chat; the old one is in the list of chats."""
        await self._show(None)
        self._system = self.services.config.chat.system

    def _same(self, conversation: Conversation) -> Conversation:
        """The object that an answer is being written into, if it is this chat."""
        return conversation

    async def _show(self, conversation: Conversation | None) -> None:
        if self.editing is None:
            self._drafts[self.chat_id] = self.prompt.text
        self.editing, self.attached = None, []
        self._conversation = conversation
        self.put_aside = ""
        self.prompt.fill(self.draft())
        await self.sync()
        await self.transcript.to_end()
        self.show_notice()
        self.chat_changed()
        self.prompt.focus()

    def draft(self) -> str:
        """What was typed in the shown chat and not sent; while a message is edited, before that."""
        id = self.chat_id
        if id is not None and id not in self._drafts:
            self._drafts[id] = self.services.store.draft(id)
        return self._drafts.get(id, "")

    def keep_drafts(self) -> None:
        """Store what was typed and not sent. The shown chat comes last: it is to be resumed."""
        shown = self.draft() if self.editing is not None else self.prompt.text or self.put_aside
        store, drafts = self.services.store, {**self._drafts, self.chat_id: shown}
        drafts[self.chat_id] = drafts.pop(self.chat_id)
        for chat, text in drafts.items():
            try:
                if chat is not None and text != store.draft(chat):
                    store.keep_draft(chat, text)
                elif chat is None and text.strip():
                    made = store.new_chat(self.services.host.model, self._system)
                    store.keep_draft(made.id, text)
            except IngotError as error:
                log.warning("a draft could not be kept: %s", error)

    def chat_changed(self) -> None:
        """Another chat is shown, or the shown one has changed; for those who tell about it."""

    async def sync(self) -> None:
        """Show the path as it is now."""
        entries = []
        for message in self.path:
            among = self.conversation.siblings(message.id)
            index = next(i for i, one in enumerate(among, 1) if one.id == message.id)
            entries.append(Entry(message, index, len(among)))
        await self.transcript.sync(entries)
        self.show_title()

    def show_title(self) -> None:
        """The chat's name."""
        title = self._conversation.chat.title if self._conversation else ""
        self.bar.update(title or "New chat")

    def show_notice(self) -> None:
        """What is attached and what the prompt is for, above it."""
        parts = []
        if self.editing is not None:
            parts.append(
                "Editing an earlier message: [chat.send enter] sends it as a branch,"
                " [chat.stop esc] leaves it"
            )
        if self.attached:
            names = attached_text(self.attached)
            parts.append(f"+ {names}   (backspace in an empty prompt takes the last one away)")
        parts += self.more_notices()
        self.notice.update(told(self, "\n".join(parts)))
        self.notice.display = bool(parts)

    def show_welcome(self) -> None:
        """What an empty chat says."""
        lines = ["Write below; [chat.send enter] sends.", "", "", "", "", _MODES]
        for column in _WELCOME:
            cells = [told(self, text) for text in column]
            keys, does = max(map(len, cells[::2])) + 2, max(map(len, cells[1::2])) + 6
            for line, at in ((2, 0), (3, 2)):
                lines[line] += f"{cells[at]:<{keys}}{cells[at + 1]:<{does}}"
        self.transcript.welcome(told(self, "\n".join(line.rstrip() for line in lines)))

    def more_notices(self) -> list[str]:
        """Further lines of the notice."""
        return []

    def tell(self, problem: object) -> None:
        """An error, as a toast."""
        self.notify(str(problem), severity="error", timeout=10, markup=False)

    def say(self, text: str) -> None:
        """Something good to know, as a toast."""
        self.notify(text, timeout=5, markup=False)
