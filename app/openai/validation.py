"""The most that one request may bring, however large its body may be; and how a value that is
wrong is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtimes.untrusted import Bounds, excess

# A schema of 64 levels in a tool of a list, with room for the body around it.
BODY = Bounds(depth=80, values=4_000_000, characters=64 * 2**20)
TOOL = Bounds(depth=64, values=20_000, characters=2**18)  # all keys of its function
ARGUMENTS = Bounds(depth=64, values=100_000, characters=2**22)  # of an earlier call
MOST_MESSAGES = 4096
MOST_STOPS = 64
MOST_STOP_CHARACTERS = 8192  # of all stop strings together
MOST_PROMPTS = 256
MOST_ANSWERS = 256  # prompts times samples
MOST_CONTINUATIONS = 256
MOST_INPUTS = 2048
MOST_BIASES = 1024
MOST_TOOLS = 128
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


def wrong_kind(name: str, wanted: str, value: Any) -> InputError:
    """The error of a value of another type than ``wanted``. A float is shown as it is where a
    whole number or a switch is wanted."""
    found = str(value)[:40] if isinstance(value, float) else kind(value)
    return InputError("wrong_type", f"{name} must be {wanted}, not {found}")


def check_bounds(value: Any, name: str, bounds: Bounds = BODY) -> None:
    """Raises InputError where ``value`` is larger or deeper than ``bounds``."""
    wrong = excess(value, bounds)
    if wrong is not None:
        raise InputError("invalid_value", f"{name} {wrong}")


def require_object(value: Any, name: str, wanted: str = "an object") -> None:
    """Raises InputError where ``value`` is none."""
    if not isinstance(value, Mapping):
        raise InputError("wrong_type", f"{name} must be {wanted}, not {kind(value)}")


def require_list(value: Any, name: str, wanted: str) -> None:
    """Raises InputError where ``value`` is none."""
    if not isinstance(value, list):
        raise InputError("wrong_type", f"{name} must be {wanted}, not {kind(value)}")


def check_count(count: int, name: str, what: str, most: int) -> None:
    """Raises InputError where ``name`` has more than ``most`` of ``what``."""
    if count > most:
        raise InputError("invalid_value", f"{name} has {count:,} {what}, above {most:,}")


def kind(value: Any) -> str:
    """JSON's name for the type of ``value``."""
    return "nothing" if value is MISSING else _KINDS.get(type(value), type(value).__name__)


def shown(value: Any) -> str:
    """A value of a request in a message about it: short ones as they are."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value[:60]) if isinstance(value, str) else kind(value)
