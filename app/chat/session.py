"""``Session``: the chat that is shown, what is typed for it, and what waits to be sent; drafts on
disk."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.chat.budget import DraftMessage
from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.store.records import Attachment, Chat, Message
from app.chat.store.store import ChatStore
from runtimes.errors import IngotError

log = logging.getLogger(__name__)


# ``Drafts``: what was typed and not sent, on its way to the disk while one types.


class Drafts:
    """Stores drafts by the numbers of their chats. What was typed where no chat is yet (None) gets
    one of its own, which ``new_chat`` makes. Methods may be called from any thread; they write."""

    def __init__(self, store: ChatStore, new_chat: Callable[[], int]) -> None:
        self._store, self._new_chat = store, new_chat
        self._lock = threading.Lock()
        self._stored: dict[int, str] = {}
        self._made: int | None = None  # for what was typed where no chat is yet
        self._last = 0  # the newest state that was stored, or that must not be any more

    def keep(self, drafts: Mapping[int | None, str], state: int, *, durable: bool = False) -> None:
        """Store these, the last one as the latest. ``state`` counts them: an older state than one
        that was kept, or forgotten, changes nothing. A problem is only logged."""
        with self._lock:
            if state < self._last:
                return
            self._last = state
            for chat, text in drafts.items():
                try:
                    self._keep(chat, text, durable)
                except IngotError as error:
                    log.warning("a draft could not be kept: %s", error)

    def forget(self, chat: int, state: int) -> None:
        """The draft was sent. What was to be kept up to ``state`` is outdated."""
        with self._lock:
            self._last = state + 1
            if self._stored.pop(chat, "") or self._store.draft(chat):
                self._store.keep_draft(chat, "")

    def take(self, wanted: int | None = None) -> int | None:
        """The chat that was made for what was typed where none was yet, or None; it is that of its
        own from now on. With ``wanted``, only if it is this one."""
        with self._lock:
            made = self._made
            if made is None or wanted not in (None, made):
                return None
            self._made = None
            return made

    def _keep(self, chat: int | None, text: str, durable: bool) -> None:
        if chat is None:
            chat = self._made
            if chat is None and text.strip():
                chat = self._made = self._new_chat()
            elif chat is not None and not text.strip():
                self._made = None
                self._store.discard(chat)
                return
        if chat is None:
            return
        if chat not in self._stored:
            self._stored[chat] = self._store.draft(chat)
        if text != self._stored[chat]:
            self._store.keep_draft(chat, text, durable=durable)
            self._stored[chat] = text


@dataclass(frozen=True, slots=True)
class Before:
    """Shown chat and edited message before a send, so that it can be undone."""

    leaf: int | None
    editing: int | None


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A message that waits for the answer before it. ``after_stop``: it was typed while the answer
    was being stopped, and is sent all the same."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    after_stop: bool = False


@dataclass(slots=True)
class MessageQueue:
    """The messages that wait in one chat. ``after`` is the answer that has ended, from then on; the
    first of those that wait is to be sent after it."""

    conversation: Conversation
    waiting: list[FollowUp] = field(default_factory=list)
    after: int | None = None


class Session:
    """A chat is made when its first message is sent, or when something is set for it."""

    def __init__(self, store: ChatStore, host: EngineHost) -> None:
        self._store, self.host = store, host
        self.shown: Conversation | None = None
        self.system: str | None = None  # for the chat that is not made yet
        self.attached: list[Attachment] = []
        self.editing: int | None = None  # the message that the prompt will replace
        self.put_aside = ""  # what ctrl+c took out of the prompt, until something is sent
        self._queues: dict[int | None, MessageQueue] = {}  # by their chats
        self._drafts: dict[int | None, str] = {}  # of chats that were shown
        self.kept = Drafts(store, lambda: store.new_chat(host.model, self.system).id)
        self._state = 0

    @property
    def conversation(self) -> Conversation:
        """The chat that is shown, made now if it is none yet. Raises StoreError."""
        if self.shown is not None:
            return self.shown
        made = self.kept.take()  # for its draft
        if made is None:
            begun = Conversation.new(self._store, model=self.host.model, system=self.system)
        else:
            self._store.restore_chat(made)  # who has deleted it and sends goes on with it
            begun = Conversation.open(self._store, made)
            begun.update(system=self.system)
        self.shown = begun
        self._drafts[begun.chat.id] = self._drafts.pop(None, "")
        return begun

    @property
    def path(self) -> Sequence[Message]:
        """The messages that are shown."""
        return self.shown.path if self.shown else ()

    @property
    def plain(self) -> bool:
        """Whether what is typed is continued, and not answered."""
        return self.shown.plain(self.host) if self.shown else self.host.plain

    @property
    def chat_id(self) -> int | None:
        """None for a chat that has not been made."""
        return self.shown.chat.id if self.shown else None

    @property
    def draft(self) -> str:
        """Unsent text of the shown chat; while a message is edited, the text before the edit."""
        id = self.chat_id
        if id is not None and id not in self._drafts:
            self._drafts[id] = self._store.draft(id)
        return self._drafts.get(id, "")

    def show(self, conversation: Conversation | None, typed: str) -> None:
        """Another chat; in the one before, ``typed`` was in the prompt."""
        if self.editing is None:
            self._drafts[self.chat_id] = typed
        self.editing, self.attached, self.put_aside = None, [], ""
        if conversation is not None and self.kept.take(conversation.chat.id) is not None:
            self._drafts[conversation.chat.id] = self._drafts.pop(None, "")
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
        self.kept.forget(message.chat, self._state)
        return message, before, draft

    def take_back(self, said: Message, before: Before, typed: str) -> None:
        """Undo ``say``; ``typed`` is in the prompt."""
        self.conversation.take_back(said.id, before.leaf)
        self.attached = [*said.attachments, *self.attached]
        if before.editing is not None:
            self._drafts[self.chat_id] = typed
            self.editing = before.editing

    def next_prompt(self, text: str) -> tuple[Conversation, DraftMessage]:
        """Return the conversation and draft that sending ``text`` now would use."""
        conversation = self.shown
        if conversation is None:
            chat = Chat(id=0, title="", created=0.0, updated=0.0, system=self.system)
            conversation = Conversation(self._store, chat)
        parent = conversation.leaf
        if self.editing is not None:
            parent = conversation.message(self.editing).parent
        return conversation, DraftMessage(text, tuple(self.attached), parent)

    # What waits for the answer before it

    @property
    def queued(self) -> Sequence[FollowUp]:
        """In the chat that is shown, the next one first."""
        queue = self._queues.get(self.chat_id)
        return tuple(queue.waiting) if queue else ()

    def queue(self, text: str, *, after_stop: bool) -> None:
        """Send it, and what is attached, when the answer that is being written here has ended."""
        self.add(self.conversation, FollowUp(text, tuple(self.attached), after_stop))
        self.attached, self.put_aside = [], ""

    def add(self, conversation: Conversation, one: FollowUp) -> None:
        """Have it wait behind the others of its chat."""
        queue = self._queues.setdefault(conversation.chat.id, MessageQueue(conversation))
        queue.waiting.append(one)

    def unqueue(self, at: int = -1) -> str | None:
        """Take back one that waits in the chat that is shown: its text; its files are attached.
        None when it is not there any more."""
        one = self._take(self.chat_id, at)
        if one is None:
            return None
        self.attached = [*one.attachments, *self.attached]
        return one.text

    def answered(self, chat: int, answer: int, *, whole: bool) -> None:
        """An answer of this chat has ended. Unless it is whole, only what was typed after its stop
        is to be sent."""
        queue = self._queues.get(chat)
        if queue is not None and (whole or queue.waiting[0].after_stop):
            queue.after = answer

    @property
    def stranded(self) -> bool:
        """Whether something waits in the chat that is shown, but not for its turn."""
        queue = self._queues.get(self.chat_id)
        return queue is not None and queue.after is None

    def ready(self) -> tuple[Conversation, int, FollowUp] | None:
        """Take what may be sent now: its chat, the answer before it, and the message."""
        for chat, queue in list(self._queues.items()):
            if queue.after is not None:
                after, queue.after = queue.after, None
                one = self._take(chat, 0)
                assert one is not None
                return queue.conversation, after, one
        return None

    def _take(self, chat: int | None, at: int) -> FollowUp | None:
        queue = self._queues.get(chat)
        if queue is None or not -len(queue.waiting) <= at < len(queue.waiting):
            return None
        one = queue.waiting.pop(at)
        if not queue.waiting:
            del self._queues[chat]
        return one

    # Drafts, on disk

    def unsent(self, typed: str) -> tuple[dict[int | None, str], int]:
        """All that was typed and not sent, by its chat, and the number of this state: for
        ``kept.keep``, in a thread. The shown chat comes last: it is to be resumed."""
        shown = self.draft if self.editing is not None else typed or self.put_aside
        drafts = {**self._drafts, self.chat_id: shown}
        for chat, queue in self._queues.items():
            texts = [*(one.text for one in queue.waiting), drafts.get(chat, "")]
            drafts[chat] = "\n\n".join(text for text in texts if text.strip())
        drafts[self.chat_id] = drafts.pop(self.chat_id)
        self._state += 1
        return drafts, self._state
