"""From one parsed row to what the model is asked: plain transformations, no files, no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runtimes.request import Priority, SamplingParams

# How a row was written, and so how its record is: ``openai-*`` rows are requests to that endpoint.
Style = Literal["flat", "openai-chat", "openai-completions"]

DEFAULT_FIELDS = ("messages", "prompt")
ID_FIELDS = ("custom_id", "id", "question_id")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class RowProblem:
    """Why a row has no answer. ``code`` is for programs, ``message`` for people. ``style`` and
    ``source`` are as in ``Task``, as far as they could be made out."""

    code: str
    message: str
    style: Style = "flat"
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


class BadRowError(Exception):
    """Raised inside the parsing of one row; never leaves this package."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = RowProblem(code, message)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """What to ask: earlier messages, then one or more user turns, each answered in order.

    ``sampling`` is the row's own, complete, or None for the job's. A row of style
    ``openai-completions`` is a single turn that is sent without the chat template. ``source`` has
    the fields of the input's row, ready for JSON.
    """

    history: tuple[Message, ...]
    turns: tuple[str, ...]
    sampling: SamplingParams | None = None
    priority: Priority = Priority.NORMAL
    style: Style = "flat"
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def characters(self) -> int:
        """Of all messages and turns."""
        return sum(len(m.content) for m in self.history) + sum(map(len, self.turns))


MISSING = object()


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path (``a.b.0``), or ``MISSING``. A key with dots in it wins."""
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif (
            isinstance(value, list) and part.isascii() and part.isdigit() and int(part) < len(value)
        ):
            value = value[int(part)]
        else:
            return MISSING
    return value


def task_of(row: Mapping[str, Any], field: str | None) -> Task:
    """The task in ``row``: at ``field``, or else under ``messages`` or ``prompt``.

    Raises BadRowError when there is none or it has the wrong shape.
    """
    names = DEFAULT_FIELDS if field is None else (field,)
    for name in names:
        value = lookup(row, name)
        if value is not MISSING:
            return task_at(value, name)
    wanted = " or ".join(repr(name) for name in reversed(names))
    raise BadRowError("missing_field", f"the row has no {wanted}")


def row_id(row: Mapping[str, Any], index: int) -> str | int:
    """The row's own ``custom_id``, ``id`` or ``question_id``; else its index."""
    for name in ID_FIELDS:
        value = row.get(name)
        # Floats (1e999 parses as infinity), lists and the like cannot identify a row.
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return value
    return index


def task_at(value: Any, name: str) -> Task:
    """The task in a text, a list of texts (turns) or a list of messages, which messages about it
    call ``name``. Raises BadRowError."""
    if isinstance(value, str):
        return Task((), (_text(value, repr(name)),))
    if not isinstance(value, list):
        raise BadRowError(
            "wrong_type",
            f"{name!r} must be a string or a list of strings or messages, not {kind(value)}",
        )
    if not value:
        raise BadRowError("empty_prompt", f"{name!r} is an empty list")
    if all(isinstance(item, str) for item in value):
        turns = (_text(text, f"{name}.{i}") for i, text in enumerate(value))
        return Task((), tuple(turns))
    messages = tuple(_message(item, f"{name}.{i}") for i, item in enumerate(value))
    *history, last = messages
    if last.role != "user":
        raise BadRowError(
            "wrong_type", f"the last message of {name!r} is from the {last.role}, not the user"
        )
    return Task(tuple(history), (last.content,))


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, Mapping):
        raise BadRowError("wrong_type", f"{where} must be a message with a role, not {kind(item)}")
    role = item.get("role", MISSING)
    if not isinstance(role, str) or role not in _ROLES:
        roles = "system, user or assistant"
        found = "missing" if role is MISSING else repr(role)[:40]
        raise BadRowError("wrong_type", f"{where}.role must be {roles}; it is {found}")
    content = item.get("content", MISSING)
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content.{i}") for i, part in enumerate(content))
    if not isinstance(content, str):
        raise BadRowError("wrong_type", f"{where}.content must be a string, not {kind(content)}")
    if role == "user":
        return Message(role, _text(content, f"{where}.content"))
    return Message(role, as_unicode(content, f"{where}.content"))


def _part(part: Any, where: str) -> str:
    if (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    ):
        return str(part["text"])
    raise BadRowError("wrong_type", f"{where} is not a text part; only text is supported")


def _text(text: str, where: str) -> str:
    if not text.strip():
        raise BadRowError("empty_prompt", f"{where} is blank")
    return as_unicode(text, where)


def as_unicode(text: str, where: str) -> str:
    """``text``. Raises BadRowError for half a surrogate pair, which JSON may spell: no tokenizer
    can take it, nor can many readers of JSON."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRowError(
            "invalid_unicode", f"{where} has a lone surrogate at character {error.start}"
        ) from error
    return text


def kind(value: Any) -> str:
    """What JSON calls the type of ``value``."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "nothing" if value is MISSING else type(value).__name__
