"""Methods of texts, lists and objects that templates may call, with bounds on what they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

from runtimes.templates.budget import Budget

_ELEMENT = 16  # characters that a new text of its own counts for, beside its length
_PIECE = 32  # and one that is only about to be made
_MOST_STRIPPED = 1000  # characters of an argument of other objects' methods
_MOST_WORK = 2**31  # comparisons of characters in one search
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))


def call_method(
    budget: Budget, method: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    """``method(*args, **named)``, a method of a built-in type. Raises SecurityError for one that is
    not allowed, or makes too much."""
    owner, name = method.__self__, method.__name__
    if type(owner) is not str:
        _check_other(budget, owner, name, (*args, *named.values()))
        return method(*args, **named)
    if name not in _MADE:
        raise SecurityError(f"text.{name}() is not allowed in a template")
    if name == "join" and args:
        args = ([budget.whole(part) for part in budget.counted(args[0])], *args[1:])
    given = sorted((*args, *named.values()), key=lambda one: not isinstance(one, str))
    budget.tick(len(owner) // 64)
    sought = len(given[0]) if given and isinstance(given[0], str) else 0
    if name in _SEARCHING and sought * len(owner) > _MOST_WORK:
        raise SecurityError(f"text.{name}() would take too long in such a text")
    if _MADE[name](owner, *given) > budget.room:
        raise SecurityError(f"text.{name}() would make too much of such a text")
    made = method(*args, **named)
    if type(made) is str:
        budget.tick(len(made))
    elif type(made) is list:
        budget.tick(_ELEMENT * len(made) + len(owner))
    return made


def lines_in(text: str) -> int:
    """The most lines that ``splitlines`` finds."""
    return 1 + sum(map(text.count, _LINE_ENDS))


def _check_other(budget: Budget, owner: Any, name: str, given: tuple[Any, ...]) -> None:
    for kind, allowed in _OTHERS.items():
        if isinstance(owner, kind):
            if name not in allowed:
                raise SecurityError(f"{kind.__name__}.{name}() is not allowed in a template")
            break
    else:
        if isinstance(owner, type) or hasattr(owner, "send"):
            raise SecurityError(f"{name}() is not allowed in a template")
    if isinstance(owner, (list, tuple)) and name != "copy":
        budget.whole(owner)
    for value in given:
        foreign = not isinstance(owner, (dict, list, tuple))  # such as strftime of a date
        if foreign and isinstance(value, str) and len(value) > _MOST_STRIPPED:
            raise SecurityError(f"a text for {name}() is too long")
        budget.whole(value)


_OTHERS: dict[type, frozenset[str]] = {
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"count", "index", "copy"}),
    tuple: frozenset({"count", "index"}),
    int: frozenset({"bit_length", "bit_count", "conjugate", "as_integer_ratio", "is_integer"}),
    float: frozenset({"is_integer", "as_integer_ratio", "conjugate", "hex"}),
    bytes: frozenset({"decode"}),
}


# How many characters a method of a text makes at most; given the text and its arguments


def _nothing(text: str, *given: Any) -> int:
    """No more than the text has, if anything."""
    return 0


def _longer(text: str, *given: Any) -> int:
    """Capital letters may be three."""
    return 3 * len(text)


def _padded(text: str, *given: Any) -> int:
    return max((one for one in given if isinstance(one, int)), default=0)


def _with_tabs(text: str, size: Any = 8) -> int:
    return text.count("\t") * size + len(text) if isinstance(size, int) else 0


def replaced(text: str, old: Any = None, new: Any = None, *count: Any) -> int:
    """With ``new`` for every ``old``."""
    if not (isinstance(old, str) and isinstance(new, str)):
        return 0
    found = text.count(old) if old else len(text) + 1
    return len(text) + found * max(len(new) - len(old), 0)


def _joined(text: str, parts: Any = ()) -> int:
    return sum(len(part) for part in parts if isinstance(part, str)) + len(parts) * len(text)


def _split(text: str, *given: Any) -> int:
    separator = given[0] if given and isinstance(given[0], str) else ""
    return _PIECE * (text.count(separator) if separator else sum(map(text.count, _SPACES)))


def _lines(text: str, *given: Any) -> int:
    return _PIECE * lines_in(text)


_MADE: dict[str, Callable[..., int]] = {
    **dict.fromkeys(
        "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable"
        " isspace istitle isupper startswith endswith find index count removeprefix removesuffix"
        " partition lstrip rstrip strip rfind rindex rpartition".split(),
        _nothing,
    ),
    **dict.fromkeys("capitalize casefold lower swapcase title upper".split(), _longer),
    **dict.fromkeys("center ljust rjust zfill".split(), _padded),
    "expandtabs": _with_tabs,
    "replace": replaced,
    "join": _joined,
    **dict.fromkeys(("split", "rsplit"), _split),
    "splitlines": _lines,
}
# Python's search from the end takes the product of both lengths, as stripping does.
_SEARCHING = frozenset("lstrip rstrip strip rfind rindex rpartition rsplit".split())
