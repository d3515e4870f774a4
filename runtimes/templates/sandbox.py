"""The environment that templates run in: Jinja2's sandbox, in which whatever can be repeated or
blown up counts in the thread's `Budget`.

A template either renders as in Jinja2's own sandbox, or raises SecurityError within seconds. What
no template of a model uses and what cannot be bounded is not there: HTML's filters, autoescape,
methods that write bytes.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

from runtimes.templates.budget import current, output
from runtimes.templates.compiler import CountingGenerator
from runtimes.templates.filters import bounded_filters, bounded_tests
from runtimes.templates.methods import call_method

_MOST_BITS = 2**16  # of whole numbers that are multiplied or divided
_MOST_FORMAT = 20_000  # characters of a text with %s, and of a name in an error
_LARGEST_WIDTH = 10_000
_WIDTHS = re.compile(r"\*|\d+")
_PERCENT = re.compile(r"%(?:\([^)]*\))?([#0\- +]*[*\d]*(?:\.[*\d]*)?)")
_ELEMENT = 2  # characters that a place in a list counts for


class _Namespace(Namespace):
    def __repr__(self) -> str:
        return "<Namespace>"  # what is in it may be in it again


class _Formatter(SandboxedFormatter):
    """``text.format(...)``."""

    def format_field(self, value: Any, format_spec: str) -> str:
        check_widths(format_spec)
        return current().made(super().format_field(current().whole(value, share=10), format_spec))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion:
            current().whole(value, share=10)
        return super().convert_field(value, conversion)


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles and renders within a budget alone (`runtimes.templates.budget.within`)."""

    code_generator_class = CountingGenerator
    intercepted_binops = frozenset("+ - * / // % **".split())

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, autoescape=False, finalize=output, **options)
        self.filters = bounded_filters()
        self.tests = bounded_tests()
        del self.globals["lipsum"]
        self.globals["dict"] = _dict
        self.globals["namespace"] = _Namespace

    # What the code of `CountingGenerator` calls

    def tick(self, characters: int) -> None:
        """A turn of a loop, or a call of a macro, with so much text in it."""
        current().tick(characters)

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        """The values of a loop that has a test."""
        return current().counted(values)

    def whole(self, value: Any) -> Any:
        """A side of a comparison, or a key."""
        return current().whole(value)

    def joined(self, *parts: Any) -> str:
        """``a ~ b``."""
        budget = current()
        texts = [part if type(part) is str else budget.text(part) for part in parts]
        budget.tick(sum(map(len, texts)))
        return "".join(texts)

    def added(self, left: Any, right: Any) -> Any:
        """``a + b``."""
        if type(left) is str and type(right) is str:
            current().tick(len(left) + len(right))
        elif isinstance(left, (list, tuple, bytes, str)) and isinstance(right, type(left)):
            current().tick(_ELEMENT * (len(left) + len(right)))
        return left + right

    def part(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """``a[1:2]``."""
        found = value[slice(start, stop, step)]
        if hasattr(found, "__len__"):
            current().tick(_ELEMENT * len(found))
        return found

    # Jinja2's own hooks

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The other operators."""
        budget = current()
        if operator == "%" and isinstance(left, (str, bytes)):
            budget.tick(_percent_size(left, right))  # before it is made
        elif operator == "*":
            _check_product(left, right)
        for side in (left, right):
            if isinstance(side, int) and side.bit_length() > _MOST_BITS:
                raise SecurityError("such numbers are too large")
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "**" and whole and left.bit_length() * abs(right) > _MOST_BITS:
            raise SecurityError(f"a power of {right:.1e} is too large")
        if not isinstance(left, (int, float, str)):  # sets have differences
            budget.whole(left)
            budget.whole(right)
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``a[b]``."""
        if type(argument) is not str:
            current().whole(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``text.format`` and ``text.format_map``, bounded."""
        builtin = isinstance(value, (types.MethodType, types.BuiltinMethodType))
        if not builtin or value.__name__ not in ("format", "format_map"):
            return None
        text: Any = value.__self__
        if not isinstance(text, str):
            return None
        format_map, vformat = value.__name__ == "format_map", _Formatter(self).vformat

        def format_(*args: Any, **named: Any) -> str:
            if len(text) > _MOST_FORMAT:
                raise SecurityError(f"a text of {len(text):,} characters is too long to format")
            if format_map:
                (named,) = args
                args = ()
            return vformat(text, args, named)

        return format_

    def call(self, context: Context, obj: Any, /, *args: Any, **named: Any) -> Any:
        """``a(b)``."""
        budget = current()
        budget.tick()
        if isinstance(obj, types.BuiltinMethodType):
            named.pop("_loop_vars", None)  # Jinja2's own, for functions that want a context
            named.pop("_block_vars", None)
            return call_method(budget, obj, args, named)
        if isinstance(obj, type) and not any(obj is one for one in self.globals.values()):
            raise SecurityError(f"{obj.__name__} is not safely callable")
        if isinstance(obj, (types.MethodType, types.FunctionType)) and obj != self.counted:
            for value in args:  # which loop.changed() compares, and raise_exception() writes
                budget.whole(value)
        return super().call(context, obj, *args, **named)


def check_widths(spec: str) -> int:
    """The widths in a format together. Raises SecurityError for more than any text needs."""
    if len(spec) > 1000:
        raise SecurityError("a format is too long")
    found = 0
    for width in _WIDTHS.findall(spec):
        if width == "*" or len(width) > 9 or int(width) > _LARGEST_WIDTH:
            raise SecurityError(f"a width of {width[:20]} is too large")
        found += int(width)
    return found


def _percent_size(text: str | bytes, values: Any) -> int:
    """The most characters of ``text % values``."""
    if isinstance(text, bytes) or len(text) > _MOST_FORMAT:
        raise SecurityError("such a text cannot be formatted by %")
    widths = sum(map(check_widths, _PERCENT.findall(text)))
    budget, several = current(), values
    if isinstance(values, dict):
        several = list(values.values())
    elif not isinstance(values, tuple):
        several = [values]
    longest = max((_size(budget.whole(value)) for value in several), default=0)
    return len(text) + text.count("%") * (longest + 32) + widths


def _size(value: Any) -> int:
    return len(value) if type(value) is str else len(current().text(value))


def _check_product(left: Any, right: Any) -> None:
    for some, times in ((left, right), (right, left)):
        if isinstance(some, (str, bytes, list, tuple)) and isinstance(times, int):
            size = len(some) * max(times, 0)
            if size > current().room:
                raise SecurityError(f"{times:.1e} times a text of {len(some):,} is too long")
            current().tick(_ELEMENT * size if isinstance(some, (list, tuple)) else size)


def _dict(*args: Sequence[Any], **named: Any) -> dict[Any, Any]:
    for value in args:
        current().whole(value)
    return dict(*args, **named)
