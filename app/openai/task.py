"""What the model is asked: from a text, a list of texts or a list of messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtimes.chat import Message
from runtimes.request import Priority, SamplingParams

MISSING = object()
_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer: ``code`` is for programs, ``message`` for people."""

    code: str
    message: str


class InputError(Exception):
    """Raised where one request is read, be it a body or a row of a file. Whoever reads many of them
    keeps its ``problem`` and reads on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(code, message)


@dataclass(frozen=True, slots=True)
class Task:
    """What to ask."""

    history: tuple[Message, ...] = ()  # earlier messages, each with its role and content
    turns: tuple[str, ...] = ()  # one or more of the user's, each answered in order
    sampling: SamplingParams | None = None  # its own, complete; None for the job's
    priority: Priority = Priority.NORMAL
    raw: bool = False  # a single turn that goes in without the chat template

    @property
    def characters(self) -> int:
        """Of all messages and turns."""
        return sum(len(m["content"]) for m in self.history) + sum(map(len, self.turns))


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
    if last["role"] != "user":
        raise InputError(
            "wrong_type", f"the last message of {name!r} is from the {last['role']}, not the user"
        )
    return Task(tuple(history), (last["content"],))


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, Mapping):
        raise InputError("wrong_type", f"{where} must be a message with a role, not {kind(item)}")
    role = item.get("role", MISSING)
    if not isinstance(role, str) or role not in _ROLES:
        roles = "system, user or assistant"
        found = "missing" if role is MISSING else repr(role)[:40]
        raise InputError("wrong_type", f"{where}.role must be {roles}; it is {found}")
    where = f"{where}.content"
    content = item.get("content", MISSING)
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.{i}") for i, part in enumerate(content))
    if not isinstance(content, str):
        raise InputError("wrong_type", f"{where} must be a string, not {kind(content)}")
    text = _text(content, where) if role == "user" else as_unicode(content, where)
    return {"role": role, "content": text}


def _part(part: Any, where: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise InputError("wrong_type", f"{where} is not a text part; only text is supported")


def _text(text: str, where: str) -> str:
    if not text.strip():
        raise InputError("empty_prompt", f"{where} is blank")
    return as_unicode(text, where)


def as_unicode(text: str, where: str) -> str:
    """``text``. Raises InputError for half a surrogate pair, which JSON may spell: no
    tokenizer can take it, nor can many readers of JSON."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            "invalid_unicode", f"{where} has a lone surrogate at character {error.start}"
        ) from error
    return text


def kind(value: Any) -> str:
    """What JSON calls the type of ``value``."""
    return "nothing" if value is MISSING else _KINDS.get(type(value), type(value).__name__)


def shown(value: Any) -> str:
    """A value of a request in a message about it: short ones as they are."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value[:60]) if isinstance(value, str) else kind(value)
