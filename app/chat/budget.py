"""How much of the context a prompt will take, and what to do when it is too much.

Everything that counts tokens asks the engine, so it blocks: call it in a thread.
"""

import json
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from app.chat.conversation import Conversation, answered_ids, render, task_of
from app.chat.host import EngineHost
from app.chat.store.records import Attachment, Message, Role, State
from app.openai.prepare import Prepared, prepare
from app.openai.tools import Tools
from runtimes.api import EngineApi
from runtimes.chat import Message as ChatMessage
from runtimes.errors import RequestError
from runtimes.request import Constraint, SamplingParams, ThinkingLevel

_KEPT = 8  # prompts, with their tokens
LEAST = 16  # tokens; an answer of fewer says nothing
_SHARE = 4  # a quarter of the context is room enough for an answer of any length that is allowed


@dataclass(frozen=True, slots=True)
class DraftMessage:
    """Message to be sent after the message ``parent``. Without text and files, ``parent`` itself is
    the question, and its answer, which is to be continued, has ``answered`` tokens.
    """

    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    parent: int | None = None
    answered: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is said."""
        return not self.text.strip() and not self.attachments


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Tokens of a prompt, of the longest answer that is allowed, and of the context."""

    prompt_tokens: int
    max_tokens: int
    context: int

    @property
    def room(self) -> int:
        """Tokens left for the answer; 0 when the prompt alone is too long."""
        return max(0, self.context - self.prompt_tokens)

    @property
    def fits(self) -> bool:
        """Whether the longest answer fits."""
        return self.prompt_tokens + self.max_tokens <= self.context

    @property
    def tight(self) -> bool:
        """Whether one should be warned: the longest answer does not fit, and less than a quarter of
        the context is left for it."""
        return self.room < min(self.max_tokens, max(1, self.context // _SHARE))

    @property
    def over(self) -> bool:
        """Whether nothing can be answered."""
        return self.room == 0


class Way(StrEnum):
    """How to make room."""

    DROP_TURNS = "drop turns"  # leave the oldest out of the prompt: ``Conversation.drop(ids)``
    DROP_FILES = "drop files"  # ask without the question's files, ``Conversation.edit`` if stored
    SHORTER = "shorter"  # allow an answer of ``after.max_tokens`` only
    NEW_CHAT = "new chat"  # ask in an empty chat


@dataclass(frozen=True, slots=True)
class WayOut:
    """One choice."""

    way: Way
    says: str  # what it does
    after: TokenBudget  # what would be left
    ids: tuple[int, ...] = ()  # of the messages that it drops


@dataclass(frozen=True, slots=True)
class Shortage:
    """A prompt that leaves too little for its answer, and what makes room, the gentlest first."""

    budget: TokenBudget
    ways: list[WayOut]


def shortage(
    host: EngineHost, conversation: Conversation, draft: DraftMessage, params: SamplingParams
) -> Shortage | None:
    """Return the budget where prompt and answer do not fit, and the ways to make enough room, the
    gentlest first, without those that do not help; else None. A continued answer needs little room.
    Blocks; raises as ``measure``.
    """
    path = conversation.path_to(draft.parent)
    found: list[WayOut] = []

    def budget(given: DraftMessage, dropped: Sequence[int] = ()) -> TokenBudget:
        return measure(host, conversation, given, params, frozenset(dropped))

    def offer(way: Way, says: str, after: TokenBudget, ids: tuple[int, ...] = ()) -> None:
        if after.room > now.room:
            found.append(WayOut(way, says, after, ids))

    now = budget(draft)
    if not (now.room < LEAST if draft.answered else now.tight):
        return None
    if LEAST <= now.room < params.max_tokens:
        says = f"allow an answer of {now.room:,} tokens only"
        found.append(WayOut(Way.SHORTER, says, replace(now, max_tokens=now.room)))
    asked, asks = draft, not draft.answered
    if draft.empty and path:
        while path[-1].role is not Role.USER and len(path) > 1:  # results of calls are answered
            path, asks = path[:-1], False
        asked = DraftMessage(path[-1].text, path[-1].attachments, path[-1].parent)
    if asked.attachments and asked.text.strip() and asks:
        names = ", ".join(one.name for one in asked.attachments)
        offer(Way.DROP_FILES, f"send it without {names}", budget(replace(asked, attachments=())))
    ids, ends = _turns(path[:-1] if draft.empty else path)  # the question itself stays
    if ids:
        # The more is dropped, the more room there is.
        every = budget(draft, ids)
        enough = (lambda b: b.fits) if every.fits else (lambda b: not b.tight)
        at = bisect_left(ends[:-1], True, key=lambda end: enough(budget(draft, ids[:end])))
        oldest = f"the oldest {at + 1} turns" if at else "the oldest turn"
        left = ids[: ends[at]]
        offer(Way.DROP_TURNS, f"leave {oldest} out of the prompt", budget(draft, left), left)
    if path and not (len(path) == 1 and draft.empty) and asks:
        offer(Way.NEW_CHAT, "ask in a new chat", budget(replace(asked, parent=None)))
    return Shortage(now, found)


def measure(
    host: EngineHost,
    conversation: Conversation,
    draft: DraftMessage,
    params: SamplingParams,
    dropped: Collection[int] = (),
) -> TokenBudget:
    """The budget of what would be asked, without the messages whose ids are ``dropped``. Blocks.
    Raises RequestError when no model is loaded, or its template refuses the conversation."""
    path = [m for m in conversation.path_to(draft.parent) if m.id not in dropped]
    if not draft.empty:
        about = (-1, conversation.chat.id, draft.parent, Role.USER, draft.text, State.DONE, 0.0)
        path.append(Message(*about, attachments=draft.attachments))
    messages = render(conversation.chat.system, path)
    engine, tokens = _engine(host), 0
    if any(message["role"] != "system" for message in messages):
        tokens = len(prepared(engine, host, conversation, messages, params).ids)
    return TokenBudget(tokens + draft.answered, params.max_tokens, engine.context)


def more_of(host: EngineHost, answer: Message) -> DraftMessage:
    """Return the draft that continues ``answer``. Blocks; raises as ``measure``."""
    ids, _ = answered_ids(_engine(host), answer, host.label)
    return DraftMessage(parent=answer.parent, answered=len(ids))


def _turns(path: Sequence[Message]) -> tuple[tuple[int, ...], list[int]]:
    """The ids of what could be left out, oldest first, and how many of them each turn ends at."""
    ids: list[int] = []
    ends: list[int] = []
    for message in path:
        if message.dropped:
            continue
        if message.role is Role.USER and ids:
            ends.append(len(ids))
        ids.append(message.id)
    return tuple(ids), [*ends, len(ids)]


def prepared(
    engine: EngineApi,
    host: EngineHost,
    conversation: Conversation,
    messages: Sequence[ChatMessage],
    params: SamplingParams,
) -> Prepared:
    """The ``messages`` of a conversation as the engine is asked them, however long. What was
    counted last is not tokenized again. Raises RequestError."""
    tools = conversation.tools(host)
    form = params.constraint if tools else None  # which is bound together with the calls
    if form is not None and form.kind != "json_schema":
        raise RequestError("tools go with /schema, not with /choice: end one of them")
    known: Any = engine  # hashable, which the protocol does not say
    called = tools and [tools.functions, tools.required, tools.parallel]
    said = json.dumps([list(messages), called])
    plain = conversation.plain(host)
    return _prepared(known, said, plain, host.template, params.thinking, form)


@lru_cache(_KEPT)
def _prepared(
    engine: EngineApi,
    said: str,
    plain: bool,
    template: str | None,
    thinking: ThinkingLevel | None,
    form: Constraint | None,
) -> Prepared:
    messages, called = json.loads(said)
    tools = None if called is None else Tools(tuple(called[0]), *called[1:])
    task = task_of(messages, plain=plain, tools=tools)
    params = SamplingParams(thinking=thinking, constraint=form)
    return prepare(task, engine, params, template=template, bounded=False)


def _engine(host: EngineHost) -> EngineApi:
    if host.engine is None:
        raise RequestError("no model is loaded, so tokens cannot be counted")
    return host.engine
