"""Methods of texts, lists and objects that templates may call, with bounds on what they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

from runtimes.templates.budget import Budget

MOST_PARTS = 2**20  # pieces of a text that is split
_MOST_STRIPPED = 1000  # characters that are stripped from an end
_ELEMENT = 16  # characters that a new text of its own counts for, beside its length
_MOST_WORK = 2**31  # comparisons of characters in one search
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"

Check = Callable[[Budget, str, tuple[Any, ...], Mapping[str, Any]], None]


def call_method(
    budget: Budget, method: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    """``method(*args, **named)``, a method of a built-in type. Raises SecurityError for one that is
    not allowed, or makes too much."""
    owner, name = method.__self__, method.__name__
    if type(owner) is not str:
        _check_other(budget, owner, name, args, named)
        return method(*args, **named)
    check = _TEXTS.get(name)
    if check is None:
        raise SecurityError(f"text.{name}() is not allowed in a template")
    if name == "join" and args:
        args = ([budget.whole(part) for part in budget.counted(args[0])], *args[1:])
    check(budget, owner, args, named)
    made = method(*args, **named)
    if type(made) is str:
        budget.tick(len(made))
    elif type(made) is list:
        budget.tick(_ELEMENT * len(made) + len(owner))
    return made


def lines_in(text: str) -> int:
    """The most lines that ``splitlines`` finds."""
    return 1 + sum(map(text.count, _LINE_ENDS))


def _check_other(
    budget: Budget, owner: Any, name: str, args: tuple[Any, ...], named: Mapping[str, Any]
) -> None:
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
    for value in (*args, *named.values()):
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


def _plain(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Takes as long as the text."""
    budget.tick(len(text) // 64)


def _longer(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """May be several times as long, such as capital letters."""
    if 3 * len(text) > budget.room:
        raise SecurityError(f"a text of {len(text):,} characters is too long")


def _padded(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    if args and isinstance(args[0], int) and args[0] > budget.room:
        raise SecurityError(f"a width of {args[0]:.1e} is too large")


def _tabs(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    size = [*args, *named.values(), 8][0]
    if isinstance(size, int) and text.count("\t") * size + len(text) > budget.room:
        raise SecurityError("such tabs are too wide")


def _stripped(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    _plain(budget, text, args, named)
    if args and isinstance(args[0], str) and len(args[0]) > _MOST_STRIPPED:
        raise SecurityError(f"more than {_MOST_STRIPPED} characters to strip")


def _replaced(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    if len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        check_replaced(budget, text, args[0], args[1])


def check_replaced(budget: Budget, text: str, old: str, new: str) -> None:
    """Raise SecurityError where the text would be too long with ``new`` for every ``old``."""
    count = text.count(old) if old else len(text) + 1
    if len(text) + count * max(len(new) - len(old), 0) > budget.room:
        raise SecurityError(f"a text with {count:,} replacements is too long")


def _joined(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    parts = args[0] if args else []
    size = sum(len(part) for part in parts if isinstance(part, str)) + len(parts) * len(text)
    if size > budget.room:
        raise SecurityError(f"a text of {size:,} characters is too long")


def _split(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    separator = [*args, *named.values(), None][0]
    count = len(text)
    if isinstance(separator, str) and separator:
        count = text.count(separator)
    elif count > MOST_PARTS:
        count = len(text.split(None, MOST_PARTS + 1))
    if count > MOST_PARTS:
        raise SecurityError(f"a text cannot be split into {count:,} pieces")


def _lines(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    if len(text) > MOST_PARTS and lines_in(text) > MOST_PARTS:
        raise SecurityError("a text has too many lines")


def _backwards(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Python's search from the end takes the product of both lengths."""
    _plain(budget, text, args, named)
    if args and isinstance(args[0], str) and len(args[0]) * len(text) > _MOST_WORK:
        raise SecurityError("such a text is too long to be searched from its end")


def _split_backwards(
    budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]
) -> None:
    _backwards(budget, text, args or tuple(named.values()), {})
    _split(budget, text, args, named)


_TEXTS: dict[str, Check] = {
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
