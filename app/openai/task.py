"""Task: a text, a list of texts or a list of messages for the model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from app.openai.tools import Tools
from app.openai.validation import (
    ARGUMENTS,
    MISSING,
    Given,
    InputError,
    JsonObject,
    as_unicode,
    check_bounds,
    kind,
    require_list,
    require_object,
    shown,
)
from runtimes.chat import Message
from runtimes.request import Priority, SamplingParams, ThinkingPlace

if TYPE_CHECKING:
    from app.adapters import AdapterFile

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class Embed:
    """How an embedding is wanted."""

    dimensions: int | None = None  # its first so many numbers; None for all
    packed: bool = False  # OpenAI's bodies have it as base64


@dataclass(frozen=True, slots=True)
class Task:
    """Prompt of a model, with its sampling parameters, tools, adapter and texts to score."""

    history: tuple[Message, ...] = ()  # earlier messages, each with its role and content
    # The user's, each answered in order; none where the history ends with what a tool returned, or
    # with what the answer begins with.
    turns: tuple[str, ...] = ()
    sampling: SamplingParams | None = None  # its own, complete; None for the job's
    priority: Priority = Priority.NORMAL
    raw: bool = False  # a single turn that goes in without the chat template
    suffix: str | None = None  # raw text behind the answer, which is to be filled in between
    # What a prompt ends within that is raw or of ids; None: no thought is told from its answer.
    at: ThinkingPlace | None = None
    tools: Tools | None = None  # what the answer may call
    reproducible: bool = False  # only an engine that always computes alike may answer
    ids: tuple[int, ...] = ()  # the prompt as tokens, in place of history and turns
    adapter: AdapterFile | None = None  # that answers; None for the model as it is
    then: str | None = None  # is not generated, but scored: how likely it is behind the prompt
    embed: Embed | None = None  # the prompt's embedding is wanted, and no answer
    # Each is asked by itself, in place of all of the above: the prompts of one body, texts to
    # embed, or a prompt with each of its continuations.
    parts: tuple[Task, ...] = ()
    labels: tuple[str, ...] = ()  # what the continuations stand for; one of them is the answer
    variables: Given | None = None  # of the chat template, beside those of thinking
    ignored: tuple[str, ...] = ()  # what of the request is left out, since it changes nothing

    @property
    def opening(self) -> list[Message]:
        """The messages that the first answer follows."""
        if self.parts:
            return self.parts[0].opening
        return [*self.history, *({"role": "user", "content": text} for text in self.turns[:1])]

    @property
    def asked(self) -> int:
        """How many answers it gets."""
        return max(1, len(self.turns), len(self.parts))

    @property
    def characters(self) -> int:
        """Count the characters of all messages and turns."""
        if self.parts:
            return sum(part.characters for part in self.parts)
        return (
            len(self.then or self.suffix or "")
            + sum(len(m["content"]) for m in self.history)
            + sum(map(len, self.turns))
        )


def task_at(value: Any, name: str) -> Task:
    """The task in a text, a list of texts (turns) or a list of messages, which messages about it
    call ``name``. Raises InputError."""
    if isinstance(value, str):
        return Task((), (_text(value, repr(name)),))
    if not isinstance(value, list):
        raise InputError(
            "wrong_type",
            f"{name!r} must be a string or a list of strings or messages, not {kind(value)}",
        )
    if not value:
        raise InputError("empty_prompt", f"{name!r} is an empty list")
    if all(isinstance(item, str) for item in value):
        return Task((), tuple(_text(text, f"{name}.{i}") for i, text in enumerate(value)))
    *history, last = (_message(item, f"{name}.{i}") for i, item in enumerate(value))
    if last.get("tool_calls"):
        raise InputError("wrong_type", f"what the calls of {name!r} have returned is missing")
    if last["role"] == "tool" or (last["role"] == "assistant" and history):
        return Task((*history, last))
    if last["role"] != "user":
        raise InputError(
            "wrong_type", f"the last message of {name!r} is from the {last['role']}, not the user"
        )
    return Task(tuple(history), (last["content"],))


def _message(item: Any, where: str) -> Message:
    require_object(item, where, "a message with a role")
    role = item.get("role", MISSING)
    if not isinstance(role, str) or role not in _ROLES:
        roles = "system, user or assistant"
        found = "missing" if role is MISSING else repr(role)[:40]
        raise InputError("wrong_type", f"{where}.role must be {roles}; it is {found}")
    more: JsonObject = {}
    content = item.get("content", MISSING)
    thought = item.get("reasoning_content") or item.get("reasoning")
    if role == "assistant" and isinstance(thought, str):
        more["reasoning_content"] = as_unicode(thought, f"{where}.reasoning_content")
    if role == "assistant" and item.get("tool_calls"):
        at = f"{where}.tool_calls"
        require_list(item["tool_calls"], at, "a list of calls")
        more["tool_calls"] = [_call(one, f"{at}.{i}") for i, one in enumerate(item["tool_calls"])]
        content = "" if content in (None, MISSING) else content
    elif role == "assistant" and content in (None, MISSING) and item.get("refusal"):
        content = item["refusal"]
    elif role == "tool":
        for name in ("tool_call_id", "name"):
            if isinstance(item.get(name), str):
                more[name] = as_unicode(item[name], f"{where}.{name}")
    where = f"{where}.content"
    text = parts_text(content, where, {"text": "text", "refusal": "refusal"}, "a text part")
    return {"role": role, "content": _text(text, where) if role == "user" else text, **more}


def _call(call: Any, where: str) -> JsonObject:
    """A call of an earlier answer, its arguments as an object, which is how templates want them.
    Raises InputError."""
    call = call if isinstance(call, Mapping) else {}
    function, identity = call.get("function"), call.get("id")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InputError("wrong_type", f"{where} must be a call of a function with a name")
    if identity is not None and not isinstance(identity, str):
        raise InputError("wrong_type", f"{where}.id must be a text, not {kind(identity)}")
    where = f"{where}.function.arguments"
    given = function.get("arguments")
    try:
        arguments = json.loads(given) if isinstance(given, str) and given.strip() else given or {}
    except (ValueError, RecursionError):
        arguments = given  # an answer that was cut off within it
    if not isinstance(arguments, (Mapping, str)):
        raise InputError("invalid_value", f"{where} must be a JSON object as a text")
    check_bounds(arguments, where, ARGUMENTS)
    said = {"name": name, "arguments": arguments}
    as_unicode(json.dumps([said, identity], ensure_ascii=False), where)
    return {"id": identity or "", "type": "function", "function": said}


def merged(messages: Sequence[Message], roles: Collection[str]) -> list[Message]:
    """``messages``, in which those of one of the ``roles`` that follow each other are one."""
    found: list[Message] = []
    for role, group in groupby(messages, key=lambda message: str(message["role"])):
        same = list(group)
        if role in roles and len(same) > 1:  # at once: each may be megabytes
            text = "\n\n".join(message["content"] for message in same)
            same = [{"role": role, "content": text}]
        found += same
    return found


def parts_text(value: Any, where: str, fields: Mapping[str, str], part: str) -> str:
    """A text, or that of a list in which each is ``part``; ``fields``: where the types of them that
    are supported have theirs. Raises InputError."""
    if isinstance(value, list):
        texts = []
        for number, one in enumerate(value):
            at = f"{where}.{number}"
            require_object(one, at, part)
            name = fields.get(str(one.get("type")))
            if name is None:
                said = f"{at}.type: {shown(one.get('type'))} is not supported; only text is"
                raise InputError("unsupported_parameter", said)
            if isinstance(one.get(name), list):
                raise InputError("wrong_type", f"{at}.{name} must be a text, not a list")
            texts.append(parts_text(one.get(name), f"{at}.{name}", fields, part))
        return "".join(texts)
    if not isinstance(value, str):
        raise InputError("wrong_type", f"{where} must be a text, not {kind(value)}")
    return as_unicode(value, where)


def _text(text: str, where: str) -> str:
    if not text.strip():
        raise InputError("empty_prompt", f"{where} is blank")
    return as_unicode(text, where)
