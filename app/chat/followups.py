"""Messages that wait for the answer before them, chat by chat."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.chat.conversation import Conversation
from app.chat.store.records import Attachment


@dataclass(frozen=True, slots=True)
class FollowUp:
    """``after_stop``: it was typed while the answer was being stopped, and is sent all the same."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    after_stop: bool = False


@dataclass(slots=True)
class Queue:
    """Of one chat. ``after`` is the answer that has ended, from then on; the first of those that
    wait is to be sent after it."""

    conversation: Conversation
    waiting: list[FollowUp] = field(default_factory=list)
    after: int | None = None


class FollowUps:
    """The queues of all chats."""

    def __init__(self) -> None:
        self._queues: dict[int, Queue] = {}

    def add(self, conversation: Conversation, one: FollowUp) -> None:
        """Behind the others of its chat."""
        self._queues.setdefault(conversation.chat.id, Queue(conversation)).waiting.append(one)

    def of(self, chat: int | None) -> Sequence[FollowUp]:
        """What waits in a chat, the next one first."""
        queue = None if chat is None else self._queues.get(chat)
        return tuple(queue.waiting) if queue else ()

    def take(self, chat: int | None, at: int) -> FollowUp | None:
        """Take one back; None when it is not there any more."""
        queue = None if chat is None else self._queues.get(chat)
        if chat is None or queue is None or not -len(queue.waiting) <= at < len(queue.waiting):
            return None
        one = queue.waiting.pop(at)
        if not queue.waiting:
            del self._queues[chat]
        return one

    def answered(self, chat: int, answer: int, *, whole: bool) -> None:
        """An answer of this chat has ended. Unless it is whole, only what was typed after its stop
        is to be sent."""
        queue = self._queues.get(chat)
        if queue is not None and (whole or queue.waiting[0].after_stop):
            queue.after = answer

    def stranded(self, chat: int | None) -> bool:
        """Whether something waits there, but not for its turn."""
        queue = None if chat is None else self._queues.get(chat)
        return queue is not None and queue.after is None

    def ready(self) -> tuple[Conversation, int, FollowUp] | None:
        """Take what may be sent now: its chat, the answer before it, and the message."""
        for chat, queue in list(self._queues.items()):
            if queue.after is not None:
                after, queue.after = queue.after, None
                one = self.take(chat, 0)
                assert one is not None
                return queue.conversation, after, one
        return None

    def texts(self) -> dict[int, str]:
        """Of each chat with a queue, what waits as one text."""
        return {chat: joined(queue.waiting) for chat, queue in self._queues.items()}


def joined(messages: Iterable[FollowUp], *more: str) -> str:
    """As one draft."""
    texts = [*(one.text for one in messages), *more]
    return "\n\n".join(text for text in texts if text.strip())
