"""``Session``: the chat that is shown, and what is being written for it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from app.chat.budget import Draft
from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.store.records import Attachment, Chat, Message
from app.chat.store.store import Store
from runtimes.errors import IngotError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Before:
    """What was shown and edited before a message was sent: to take it back."""

    leaf: int | None
    editing: int | None


class Session:
    """A chat is made when its first message is sent, or when something is set for it."""

    def __init__(self, store: Store, host: EngineHost) -> None:
        self._store, self._host = store, host
        self.shown: Conversation | None = None
        self.system: str | None = None  # for the chat that is not made yet
        self.attached: list[Attachment] = []
        self.editing: int | None = None  # the message that the prompt will replace
        self.put_aside = ""  # what ctrl+c took out of the prompt, until something is sent
        self._drafts: dict[int | None, str] = {}  # of chats that were shown

    @property
    def conversation(self) -> Conversation:
        """The chat that is shown, made now if it is none yet. Raises StoreError."""
        if self.shown is None:
            self.shown = Conversation.new(self._store, model=self._host.model, system=self.system)
            self._drafts[self.shown.chat.id] = self._drafts.pop(None, "")
        return self.shown

    @property
    def path(self) -> Sequence[Message]:
        """The messages that are shown."""
        return self.shown.path if self.shown else ()

    @property
    def chat_id(self) -> int | None:
        """None for a chat that has not been made."""
        return self.shown.chat.id if self.shown else None

    @property
    def draft(self) -> str:
        """What was typed in the shown chat and not sent; while a message is edited, before that."""
        id = self.chat_id
        if id is not None and id not in self._drafts:
            self._drafts[id] = self._store.draft(id)
        return self._drafts.get(id, "")

    def show(self, conversation: Conversation | None, typed: str) -> None:
        """Another chat; in the one before, ``typed`` was in the prompt."""
        if self.editing is None:
            self._drafts[self.chat_id] = typed
        self.editing, self.attached, self.put_aside = None, [], ""
        self.shown = conversation

    def edit(self, message: Message, typed: str) -> None:
        """The prompt is for another version of ``message``; ``typed`` was in it."""
        if self.editing is None:
            self._drafts[self.chat_id] = typed
        self.editing, self.attached = message.id, list(message.attachments)

    def leave_edit(self) -> bool:
        """The prompt is for the draft again; False when nothing was being edited."""
        if self.editing is None:
            return False
        self.editing, self.attached = None, []
        return True

    def say(self, text: str) -> tuple[Message, Before, str]:
        """Store what was typed: the message, what there was before it, and the draft that its
        editing had put away. Raises RequestError, StoreError."""
        before = Before(self.shown.leaf if self.shown else None, self.editing)
        if self.editing is not None:
            message = self.conversation.edit(self.editing, text, self.attached)
            draft = self._drafts.pop(self.chat_id, "")
        else:
            message = self.conversation.say(text, self.attached)
            draft = ""
        self.editing, self.attached, self.put_aside = None, [], ""
        if self._store.draft(message.chat):
            self._store.keep_draft(message.chat, "")
        return message, before, draft

    def take_back(self, said: Message, before: Before, typed: str) -> None:
        """Undo ``say``; ``typed`` is in the prompt."""
        self.conversation.take_back(said.id, before.leaf)
        self.attached = [*said.attachments, *self.attached]
        if before.editing is not None:
            self._drafts[self.chat_id] = typed
            self.editing = before.editing

    def next_prompt(self, text: str) -> tuple[Conversation, Draft]:
        """What would be asked if ``text`` were sent now."""
        conversation = self.shown
        if conversation is None:
            chat = Chat(id=0, title="", created=0.0, updated=0.0, system=self.system)
            conversation = Conversation(self._store, chat)
        parent = conversation.leaf
        if self.editing is not None:
            parent = conversation.message(self.editing).parent
        return conversation, Draft(text, tuple(self.attached), parent)

    def keep_drafts(self, typed: str) -> None:
        """Store what was typed and not sent. The shown chat comes last: it is to be resumed."""
        shown = self.draft if self.editing is not None else typed or self.put_aside
        drafts = {**self._drafts, self.chat_id: shown}
        drafts[self.chat_id] = drafts.pop(self.chat_id)
        for chat, text in drafts.items():
            try:
                if chat is not None and text != self._store.draft(chat):
                    self._store.keep_draft(chat, text)
                elif chat is None and text.strip():
                    made = self._store.new_chat(self._host.model, self.system)
                    self._store.keep_draft(made.id, text)
            except IngotError as error:
                log.warning("a draft could not be kept: %s", error)
