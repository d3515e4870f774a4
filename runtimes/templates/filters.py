"""Jinja2's filters and tests with bounds on what they read and make.

Each is one of Jinja2's, behind a check of its arguments, or is written anew where a check cannot
know what it will do. Filters that make HTML's links and tags are not there; `escape` makes a plain
text, `safe` nothing.
"""

from __future__ import annotations

import functools
import html
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2.filters
import jinja2.tests
from jinja2 import pass_environment
from jinja2.environment import Environment
from jinja2.exceptions import FilterArgumentError, SecurityError

from runtimes.templates.budget import Budget, current
from runtimes.templates.methods import lines_in, replaced

_LEFT_OUT = ("urlize", "striptags", "xmlattr")
# Those that read no more of a value than its place, or a value's attributes one by one.
_SHALLOW = (
    "abs attr batch count d default first float items last length list map random reject"
    " rejectattr reverse select selectattr slice"
).split()
_SLOW_TEXT = 2**20  # characters that filters in Python take a second for
_LARGEST_NUMBER = 10_000  # a width, a count, a number of columns
_LONGEST_WORD = 200  # of a name of an attribute, or what is put between pieces
_JSON_INDENT, _JSON_DEPTH = 16, 32
_MOST_BITS = 4096
_MOST_SORTED = 100_000
_ELEMENT = 2

Filter = Any  # a function; Jinja2's table has no better type


def bounded_filters() -> dict[str, Filter]:
    """By name."""
    own: dict[str, Filter] = {
        "e": _escape,
        "escape": _escape,
        "forceescape": _escape,
        "safe": _text,
        "string": _text,
        "int": _int,
        "join": _join,
        "list": _list,
        "replace": _replace,
        "sum": _sum,
        "tojson": tojson,
        "format": _format,
    }
    found = {}
    for name, function in jinja2.filters.FILTERS.items():
        if name not in _LEFT_OUT:
            check = _CHECKS.get(name, _shallow if name in _SHALLOW else _whole)
            found[name] = own.get(name) or _guarded(function, check)
    return found


def bounded_tests() -> dict[str, Filter]:
    """By name."""
    plain = "odd even defined undefined filter test none boolean false true integer float string"
    plain += " mapping number sequence iterable callable sameas escaped"
    return {
        name: function if name in plain.split() else _guarded(function, _whole)
        for name, function in jinja2.tests.TESTS.items()
    }


def _guarded(function: Filter, check: Callable[..., None]) -> Filter:
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        budget = current()
        budget.tick()
        check(budget, *args[passed:], **named)
        return _settled(budget, function(*args, **named))

    return call


def _settled(budget: Budget, made: Any) -> Any:
    """The result of a filter, counted."""
    if type(made) is str:
        budget.tick(len(made))
    elif isinstance(made, Iterator):
        return budget.counted(made)
    elif type(made) in (list, dict, tuple):
        budget.tick(_ELEMENT * len(made))
    return made


# Checks of arguments; they are called with those of the filter


def _small(values: Iterable[Any], largest: int = _LARGEST_NUMBER) -> None:
    """Numbers that are a width, a count or the like, and texts that are a name."""
    for one in values:
        if isinstance(one, int) and abs(one) > largest:
            raise SecurityError(f"a number of {one:.1e} is too large for a filter")
        if isinstance(one, str) and len(one) > _LONGEST_WORD:
            raise SecurityError("a name, or what is put between pieces, is too long")


def _shallow(budget: Budget, *args: Any, **named: Any) -> None:
    for value in (*args[1:], *named.values()):
        if isinstance(value, str):
            budget.tick(len(value) // 64)
        else:
            _small([value])


def _whole(budget: Budget, *args: Any, **named: Any) -> None:
    for value in (*args, *named.values()):
        budget.whole(value)


def _sorted(budget: Budget, *args: Any, **named: Any) -> None:
    _whole(budget, *args, **named)
    _small((*args[1:], *named.values()))
    if args and isinstance(args[0], str) and len(args[0]) > _MOST_SORTED:
        raise SecurityError("a text is too long for a filter of lists")


def _mapped(budget: Budget, *args: Any, **named: Any) -> None:
    _small((*args[1:2], named.get("attribute")))


def _longer(budget: Budget, value: Any = "", *args: Any, **named: Any) -> None:
    _whole(budget, value, *args, **named)
    if len(budget.text(value)) * 3 > budget.room:
        raise SecurityError("a text is too long for a filter")


def _slow(budget: Budget, value: Any = "", *args: Any, **named: Any) -> None:
    """Python's own loops, or a regular expression."""
    _whole(budget, value, *args, **named)
    if len(budget.text(value)) > _SLOW_TEXT:
        raise SecurityError(
            f"a text of more than {_SLOW_TEXT:,} characters is too long for a filter"
        )
    _small((*args, *named.values()), _SLOW_TEXT)


def _trimmed(budget: Budget, value: Any = "", *args: Any, **named: Any) -> None:
    _longer(budget, value)
    _small((*args, *named.values()))


def _indented(budget: Budget, s: Any = "", width: Any = 4, *args: Any, **named: Any) -> None:
    text = budget.text(s)
    size = width if isinstance(width, int) else len(budget.text(width))
    _small([size])
    if len(text) + lines_in(text) * (size + 64) > budget.room:
        raise SecurityError("a text is indented too far")


def _rounded(budget: Budget, *args: Any, **named: Any) -> None:
    _small((*args[1:], *named.values()), _LONGEST_WORD)


def _printed(budget: Budget, value: Any = None) -> None:
    budget.whole(value, depth=_JSON_DEPTH, share=2**8)


_CHECKS: dict[str, Callable[..., None]] = {
    **dict.fromkeys("capitalize lower upper".split(), _longer),
    **dict.fromkeys("title wordwrap wordcount truncate urlencode filesizeformat".split(), _slow),
    **dict.fromkeys("sort unique groupby min max dictsort".split(), _sorted),
    **dict.fromkeys("map selectattr rejectattr".split(), _mapped),
    "trim": _trimmed,
    "indent": _indented,
    "center": _trimmed,
    "round": _rounded,
    "pprint": _printed,
}


# Filters of our own


def _text(value: Any) -> str:
    return current().text(value)


def _escape(value: Any) -> str:
    budget = current()
    text = budget.text(value)
    if len(text) * 5 > budget.room:
        raise SecurityError("a text is too long to be escaped")
    return budget.made(html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"))


def _int(value: Any, default: int = 0, base: int = 10) -> int:
    budget = current()
    budget.tick()
    if isinstance(value, str) and len(value) > _MOST_BITS:
        return default
    made: int = jinja2.filters.do_int(budget.whole(value), default, base)
    return made


@pass_environment
def _join(
    environment: Environment,
    value: Iterable[Any],
    d: Any = "",
    attribute: str | int | None = None,
) -> str:
    budget = current()
    between = budget.text(d)
    texts = [budget.text(one) for one in _each(environment, value, attribute)]
    budget.tick(sum(map(len, texts)) + len(between) * len(texts))
    return between.join(texts)


def _list(value: Iterable[Any]) -> list[Any]:
    return list(current().counted(value, _ELEMENT))


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    budget = current()
    text, before, after = budget.text(s), budget.text(old), budget.text(new)
    if replaced(text, before, after) > budget.room:
        raise SecurityError("a text with so many replacements is too long")
    return budget.made(text.replace(before, after, -1 if count is None else count))


@pass_environment
def _sum(
    environment: Any, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0
) -> Any:
    values = _each(environment, iterable, attribute)
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    for one in values:
        start = environment.added(start, one)
    return start


def _each(
    environment: Environment, values: Iterable[Any], attribute: str | int | None
) -> Iterator[Any]:
    """The values, or an attribute of each, counted."""
    if attribute is not None:
        _small([attribute])
        values = map(jinja2.filters.make_attrgetter(environment, attribute), values)
    return current().counted(values)


@pass_environment
def _format(environment: Any, value: Any, *args: Any, **named: Any) -> Any:
    if args and named:
        raise FilterArgumentError("can't handle positional and keyword arguments at the same time")
    text = current().text(value)
    return environment.call_binop(None, "%", text, named or args)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
    *,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """JSON as transformers has it in templates: without HTML's escapes."""
    budget = current()
    wide = indent if isinstance(indent, int) else len(indent or "")
    if wide > _JSON_INDENT or sum(map(len, separators or ())) > _JSON_INDENT:
        raise SecurityError("JSON is indented too far")
    budget.whole(value, share=12 if ensure_ascii else 6)
    if wide:
        budget.whole(value, depth=_JSON_DEPTH)
    return budget.made(
        json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
            default=default,
        )
    )
