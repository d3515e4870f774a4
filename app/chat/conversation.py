"""``Conversation``: a chat in memory, as the tree of its messages with one branch that is shown."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from app.chat.attachments import with_attachments
from app.chat.host import EngineHost
from app.chat.store.records import Attachment, Chat, Message, Role
from app.chat.store.store import ChatStore
from app.chat.thinking import answer_of, thought_of
from app.openai.task import Task
from app.openai.tools import Tools
from app.tools.calls import ToolCall, call_messages
from runtimes.api import EngineApi
from runtimes.chat import Message as ChatMessage
from runtimes.errors import RequestError


class Conversation:
    """A chat of the store and all its messages, oldest first.

    What changes is stored before it shows here; StoreError leaves everything as it was. Used by one
    thread at a time, but for ``prompt``, which only reads.
    """

    def __init__(self, store: ChatStore, chat: Chat, messages: Sequence[Message] = ()) -> None:
        self.store = store
        self.chat = chat  # title, system message, sampling
        self._messages: dict[int, Message] = {}  # oldest first
        self._children: dict[int | None, list[int]] = {}
        self.leaf: int | None = None
        for message in messages:
            self._grow(message)
        if chat.leaf in self._messages:
            self.leaf = chat.leaf
        self._left: dict[int, int | None] = {}  # the leaf that was shown below a message

    @classmethod
    def open(cls, store: ChatStore, chat_id: int) -> Self:
        """A chat that is stored."""
        return cls(store, store.chat(chat_id), store.messages(chat_id))

    @classmethod
    def new(cls, store: ChatStore, **wishes: Any) -> Self:
        """An empty chat, stored; ``wishes`` as ``ChatStore.new_chat`` takes them."""
        return cls(store, store.new_chat(**wishes))

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message of every branch, oldest first."""
        return tuple(self._messages.values())

    @property
    def path(self) -> tuple[Message, ...]:
        """The branch that is shown, from its first message to its last."""
        return self.path_to(self.leaf)

    def path_to(self, id: int | None) -> tuple[Message, ...]:
        """From the first message to ``id``."""
        found: list[Message] = []
        while id is not None:
            message = self._messages[id]
            found.append(message)
            id = message.parent
        return tuple(reversed(found))

    def message(self, id: int) -> Message:
        """One message. Raises RequestError when this chat has none of this number."""
        try:
            return self._messages[id]
        except KeyError:
            raise RequestError(f"this chat has no message {id}") from None

    def siblings(self, id: int) -> tuple[Message, ...]:
        """The message and those that stand in its place in other branches, oldest first."""
        return tuple(self._messages[one] for one in self._children[self.message(id).parent])

    def switch(self, id: int, step: int) -> Message:
        """Show the branch of the sibling ``step`` further (the last one if there are fewer) as it
        was left, else down to its newest message; return the sibling."""
        among = [message.id for message in self.siblings(id)]
        target = among[min(max(among.index(id) + step, 0), len(among) - 1)]
        if target != id:
            self._left[id] = self.leaf
            self._show(self._left.get(target) or self._newest_below(target))
        return self._messages[target]

    def show_message(self, id: int) -> None:
        """Show a branch with this message in it, such as one that a search has found: the one that
        is shown if it has it, else the newest."""
        if all(message.id != id for message in self.path):
            self.message(id)
            self._show(self._newest_below(id))

    def _show(self, leaf: int) -> None:
        """The branch that ends with ``leaf``."""
        if leaf != self.leaf:
            self.chat = self.store.update_chat(self.chat.id, leaf=leaf)
            self.leaf = leaf

    def _newest_below(self, id: int) -> int:
        # A message is younger than what it answers, so that the youngest of all is a leaf.
        below = {id}
        for message in self.messages:
            if message.parent in below:
                below.add(message.id)
        return max(below)

    # What is said

    def say(
        self, text: str, attachments: Sequence[Attachment] = (), after: int | None = None
    ) -> Message:
        """The next message of the user, ``after`` that one or at the end of the shown branch."""
        return self._add(self.leaf if after is None else after, text, attachments)

    def edit(self, id: int, text: str, attachments: Sequence[Attachment] | None = None) -> Message:
        """Another version of a message of the user, in a branch of its own; it keeps the files
        unless others are given. The old branch stays."""
        old = self.message(id)
        if old.role is not Role.USER:
            raise RequestError(
                "only your own messages can be edited; an answer can be generated again"
            )
        return self._add(old.parent, text, old.attachments if attachments is None else attachments)

    def _add(self, parent: int | None, text: str, attachments: Sequence[Attachment]) -> Message:
        if not text.strip() and not attachments:
            raise RequestError("there is nothing to send")
        message = self.store.add_message(self.chat.id, parent, text, attachments)
        self._grow(message)
        self.chat = self.store.chat(self.chat.id)  # the first message has given it its title
        return message

    def take_back(self, id: int, leaf: int | None) -> None:
        """Undo ``say`` or ``edit`` of a message that nothing follows; ``leaf`` was shown before."""
        message = self.message(id)
        self.chat = self.store.take_back(id, leaf)
        del self._messages[id]
        self._children[message.parent].remove(id)
        self.leaf = leaf

    def begin(self, parent: int, host: EngineHost, label: str) -> Message:
        """An empty answer to ``parent`` by the loaded model, which people call ``label``, in a
        branch of its own if there is one already."""
        asked = self.message(parent)
        if asked.role is not Role.USER and not asked.calls:
            raise RequestError("only a message of yours can be answered")
        choice = host.choice
        message = self.store.begin_answer(
            self.chat.id,
            parent,
            model=label or None,
            file=str(choice.file.path) if choice else None,
            runtime=choice.file.runtime if choice else None,
        )
        self._grow(message)
        if host.model not in (None, self.chat.model):
            self.update(model=host.model)
        return message

    def note(self, message: Message) -> None:
        """A message as it has become."""
        if message.id in self._messages:
            self._messages[message.id] = message

    def save_calls(self, id: int, calls: Sequence[ToolCall]) -> Message:
        """Store the calls of an answer with their outcomes; the answer as it is then."""
        message = self.store.save_calls(id, calls)
        self.note(message)
        return message

    def question(self, id: int) -> Message:
        """The message of the user that an answer, or a chain of answers with calls, follows."""
        path = self.path_to(id)
        return next((one for one in reversed(path) if one.role is Role.USER), path[0])

    def drop(self, ids: Sequence[int], dropped: bool = True) -> None:
        """Leave messages out of the prompts, or take them in again."""
        self.store.set_dropped(ids, dropped)
        for id in ids:
            self._messages[id] = replace(self._messages[id], dropped=dropped)

    def rename(self, title: str) -> None:
        """Give the chat another title. Raises RequestError for a blank one."""
        title = " ".join(title.split())
        if not title:
            raise RequestError("a title needs a word")
        self.update(title=title)

    def update(self, **changes: Any) -> None:
        """Change what is kept of the chat, as ``ChatStore.update_chat``."""
        self.chat = self.store.update_chat(self.chat.id, **changes)

    def _grow(self, message: Message) -> None:
        self._messages[message.id] = message
        self._children.setdefault(message.parent, []).append(message.id)
        self.leaf = message.id

    # What the model gets

    def plain(self, host: EngineHost) -> bool:
        """Whether the model is sent text as it is, which it continues."""
        return self.chat.raw or host.plain

    def servers(self, host: EngineHost) -> list[str]:
        """The tool servers that are on in this chat: as it says, else as the settings do."""
        if host.tools is None or self.plain(host):
            return []
        on, chosen = host.tools.defaults, self.chat.tools
        return [name for name in host.tools.names if chosen.get(name, name in on)]

    def tools(self, host: EngineHost) -> Tools | None:
        """The tools of this chat's servers that run."""
        names = self.servers(host)
        return host.tools.tools(names) if names and host.tools is not None else None

    def prompt(self, until: int | None) -> list[ChatMessage]:
        """Build the model's prompt, from the system message to the message ``until``.

        Files stand before their message's text. Thoughts, answers without text and dropped messages
        are left out; neighbours that then have the same role are joined, because many templates
        refuse them.
        """
        return render(self.chat.system, self.path_to(until))


def render(system: str | None, path: Sequence[Message]) -> list[ChatMessage]:
    """See ``Conversation.prompt``."""
    found: list[dict[str, Any]] = []
    for message in path:
        if message.dropped:
            continue
        calls, returned = call_messages(message.calls)
        if message.role is Role.USER:
            text, thought = with_attachments(message.text, message.attachments), ""
        else:
            text, thought = answer_of(message.text), thought_of(message.text)
            if not text.strip() and not calls:
                continue
        if found and found[-1]["role"] == message.role:
            found[-1]["content"] += f"\n\n{text}"
        else:
            found.append({"role": str(message.role), "content": text})
        if thought:  # a template takes it that wants it
            found[-1]["reasoning_content"] = thought
        if calls:
            found[-1]["tool_calls"] = calls
            found += map(dict, returned)
    if system is not None and system.strip():
        found.insert(0, {"role": "system", "content": system})
    return list(found)


def task_of(messages: Sequence[ChatMessage], *, plain: bool, tools: Tools | None = None) -> Task:
    """To ask for the next message; with ``plain`` for what follows their text. Raises RequestError
    for no messages."""
    if not messages:
        raise RequestError("there is nothing to answer: every message is left out")
    if plain:
        text = ""
        for message in messages:  # an answer continues where its question ends
            apart = "\n\n" if text and message["role"] != "assistant" else ""
            text += f"{apart}{message['content']}"
        return Task(turns=(text,), raw=True)
    return Task(history=tuple(messages), tools=tools)


def answered_ids(engine: EngineApi, message: Message, label: str) -> tuple[list[int], bool]:
    """Ids of what an answer has so far, and whether they are those that were generated: else the
    loaded model (of this ``label``) has others, and the text is tokenized. Blocks."""
    ids = list(message.token_ids)
    known = _model(message.model) == _model(label) and max(ids, default=0) < engine.vocab_size
    if ids and known:
        return ids, True
    begin = engine.encode("")  # the BOS token, where the model wants one
    ids = engine.encode(message.text)
    return ids[len(begin) :] if ids[: len(begin)] == begin else ids, False


def _model(label: str | None) -> str | None:
    """Return the model's name in a label such as "pebble · q8_0": builds of a model share token
    ids.
    """
    return label and label.partition(" · ")[0]
