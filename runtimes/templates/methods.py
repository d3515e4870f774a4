"""Methods of texts, lists and objects that templates may call, with bounds on what they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError

from runtimes.templates.budget import Budget

MOST_PARTS = 2**20  # pieces of a text that is split
_MOST_STRIPPED = 1000  # characters that are stripped from an end
_ELEMENT = 16  # characters that a new text of its own counts for, beside its length
_MOST_WORK = 2**31  # comparisons of characters in one search
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


class MethodCall(NamedTuple):
    """Call of a method of ``owner``, a text or another value of a built-in type."""

    budget: Budget
    owner: Any
    args: tuple[Any, ...]
    named: Mapping[str, Any]

    @property
    def first(self) -> Any:
        """The first argument; None without one."""
        return next(iter((*self.args, *self.named.values())), None)


def call_method(
    budget: Budget, method: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    """``method(*args, **named)``, a method of a built-in type. Raises SecurityError for one that is
    not allowed, or makes too much."""
    owner, name = method.__self__, method.__name__
    if type(owner) is not str:
        _check_other(MethodCall(budget, owner, args, named), name)
        return method(*args, **named)
    check = _TEXTS.get(name)
    if check is None:
        raise SecurityError(f"text.{name}() is not allowed in a template")
    if name == "join" and args:
        args = ([budget.whole(part) for part in budget.counted(args[0])], *args[1:])
    check(MethodCall(budget, owner, args, named))
    made = method(*args, **named)
    if type(made) is str:
        budget.tick(len(made))
    elif type(made) is list:
        budget.tick(_ELEMENT * len(made) + len(owner))
    return made


def lines_in(text: str) -> int:
    """The most lines that ``splitlines`` finds."""
    return 1 + sum(map(text.count, _LINE_ENDS))


def _check_other(call: MethodCall, name: str) -> None:
    owner = call.owner
    for kind, allowed in _OTHERS.items():
        if isinstance(owner, kind):
            if name not in allowed:
                raise SecurityError(f"{kind.__name__}.{name}() is not allowed in a template")
            break
    else:
        if isinstance(owner, type) or hasattr(owner, "send"):
            raise SecurityError(f"{name}() is not allowed in a template")
    if isinstance(owner, (list, tuple)) and name != "copy":
        call.budget.whole(owner)
    for value in (*call.args, *call.named.values()):
        foreign = not isinstance(owner, (dict, list, tuple))  # such as strftime of a date
        if foreign and isinstance(value, str) and len(value) > _MOST_STRIPPED:
            raise SecurityError(f"a text for {name}() is too long")
        call.budget.whole(value)


_OTHERS: dict[type, frozenset[str]] = {
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"count", "index", "copy"}),
    tuple: frozenset({"count", "index"}),
    int: frozenset({"bit_length", "bit_count", "conjugate", "as_integer_ratio", "is_integer"}),
    float: frozenset({"is_integer", "as_integer_ratio", "conjugate", "hex"}),
    bytes: frozenset({"decode"}),
}


# Checks of calls of a text's methods


def _plain(call: MethodCall) -> None:
    """Takes as long as the text."""
    call.budget.tick(len(call.owner) // 64)


def _longer(call: MethodCall) -> None:
    """May be several times as long, such as capital letters."""
    if 3 * len(call.owner) > call.budget.room:
        raise SecurityError(f"a text of {len(call.owner):,} characters is too long")


def _padded(call: MethodCall) -> None:
    if isinstance(call.first, int) and call.first > call.budget.room:
        raise SecurityError(f"a width of {call.first:.1e} is too large")


def _tabs(call: MethodCall) -> None:
    text, size = call.owner, 8 if call.first is None else call.first
    if isinstance(size, int) and text.count("\t") * size + len(text) > call.budget.room:
        raise SecurityError("such tabs are too wide")


def _stripped(call: MethodCall) -> None:
    _plain(call)
    if isinstance(call.first, str) and len(call.first) > _MOST_STRIPPED:
        raise SecurityError(f"more than {_MOST_STRIPPED} characters to strip")


def _replaced(call: MethodCall) -> None:
    match call.args:
        case [str() as old, str() as new, *_]:
            check_replaced(call.budget, call.owner, old, new)


def check_replaced(budget: Budget, text: str, old: str, new: str) -> None:
    """Raise SecurityError where the text would be too long with ``new`` for every ``old``."""
    count = text.count(old) if old else len(text) + 1
    if len(text) + count * max(len(new) - len(old), 0) > budget.room:
        raise SecurityError(f"a text with {count:,} replacements is too long")


def _joined(call: MethodCall) -> None:
    parts = call.args[0] if call.args else []
    size = sum(len(part) for part in parts if isinstance(part, str)) + len(parts) * len(call.owner)
    if size > call.budget.room:
        raise SecurityError(f"a text of {size:,} characters is too long")


def _split(call: MethodCall) -> None:
    text, separator = call.owner, call.first
    count = len(text)
    if isinstance(separator, str) and separator:
        count = text.count(separator)
    elif count > MOST_PARTS:
        count = len(text.split(None, MOST_PARTS + 1))
    if count > MOST_PARTS:
        raise SecurityError(f"a text cannot be split into {count:,} pieces")


def _lines(call: MethodCall) -> None:
    if len(call.owner) > MOST_PARTS and lines_in(call.owner) > MOST_PARTS:
        raise SecurityError("a text has too many lines")


def _backwards(call: MethodCall) -> None:
    """Python's search from the end takes the product of both lengths."""
    _plain(call)
    if isinstance(call.first, str) and len(call.first) * len(call.owner) > _MOST_WORK:
        raise SecurityError("such a text is too long to be searched from its end")


def _split_backwards(call: MethodCall) -> None:
    _backwards(call)
    _split(call)


_TEXTS: dict[str, Callable[[MethodCall], None]] = {
    **dict.fromkeys(
        "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable"
        " isspace istitle isupper startswith endswith find index count removeprefix removesuffix"
        " partition".split(),
        _plain,
    ),
    **dict.fromkeys("capitalize casefold lower swapcase title upper".split(), _longer),
    **dict.fromkeys("center ljust rjust zfill".split(), _padded),
    "expandtabs": _tabs,
    **dict.fromkeys("lstrip rstrip strip".split(), _stripped),
    "replace": _replaced,
    "join": _joined,
    "split": _split,
    "rsplit": _split_backwards,
    "splitlines": _lines,
    **dict.fromkeys("rfind rindex rpartition".split(), _backwards),
}
