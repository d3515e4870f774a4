"""Prompts made from a row's fields by a Jinja2 template, in a sandbox with bounds on its output.

Rows are data: nothing in them is ever taken for template code. The template itself can neither
reach Python's internals nor change the row; what a short one could blow up to gigabytes is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.openai.task import InputError
from runtimes.errors import RequestError

# Characters of a prompt: far beyond any context, far below what memory holds for all running rows.
MOST_CHARACTERS = 16 * 2**20
_MOST_BITS = 4096  # of a power or product of whole numbers
# Methods and filters that pad to any width a number says.
_PADDING = frozenset("center ljust rjust zfill expandtabs format format_map".split())
_PADDING_FILTERS = ("center", "indent", "format", "wordwrap", "slice", "batch")
_SHOWN = 12


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, (str, bytes)):
            raise SecurityError("text % values is not allowed; write the values between texts")
        if operator == "*":
            _check_product(left, right)
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "**" and whole and max(1, left.bit_length()) * abs(right) > _MOST_BITS:
            raise SecurityError(f"a power of {right} is too large")
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("text.format(...) is not allowed; write the values between texts")
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, (str, bytes)) and attr in _PADDING:
            return False
        return super().is_safe_attribute(obj, attr, value)


class RowTemplate:
    """A compiled template."""

    def __init__(self, text: str, name: str) -> None:
        """Compile ``text``, which messages call ``name``. Raises RequestError with the line."""
        environment = _Sandbox(
            undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=False
        )
        for filter_name in _PADDING_FILTERS:
            del environment.filters[filter_name]
        del environment.globals["lipsum"]
        # Jinja2's own escapes for HTML.
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False, default=_no_json)
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(f"{name}, line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, RecursionError) as error:
            raise RequestError(f"{name} does not compile: {error}") from error

    @classmethod
    def load(cls, path: Path) -> RowTemplate:
        """The template in a UTF-8 file. Raises RequestError."""
        try:
            return cls(path.read_text(encoding="utf-8-sig"), str(path))
        except UnicodeDecodeError as error:
            raise RequestError(f"{path} is not UTF-8") from error
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error

    def render(self, fields: Mapping[str, Any]) -> str:
        """The text for a row, its fields by name and, for names that are no words, in ``row``.

        Raises InputError: the row lacks a field (code ``missing_field``), the template fails on
        it, or makes too much text.
        """
        pieces, room = [], MOST_CHARACTERS
        try:
            for piece in self._template.generate({"row": fields, **fields}):
                pieces.append(piece)
                room -= len(piece)
                if room < 0:
                    said = f"the template makes more than {MOST_CHARACTERS:,} characters of it"
                    raise InputError("template_error", said)
        except jinja2.UndefinedError as error:
            there = ", ".join(repr(name)[1:-1][:40] for name in list(fields)[:_SHOWN]) or "none"
            said = f"the template: {str(error.message)[:120]}; the row has: {there}"
            raise InputError("missing_field", said) from error
        except InputError:
            raise
        except Exception as error:  # whatever an expression of the template runs into
            reason = f"{type(error).__name__}: {error}"[:200]
            raise InputError("template_error", f"the template fails: {reason}") from error
        return "".join(pieces)


def _no_json(value: Any) -> Any:
    if isinstance(value, jinja2.Undefined):
        str(value)  # raises UndefinedError, which names the field
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _check_product(left: Any, right: Any) -> None:
    for some, times in ((left, right), (right, left)):
        if isinstance(some, (str, bytes, list, tuple)) and isinstance(times, int):
            if len(some) * times > MOST_CHARACTERS:
                raise SecurityError(f"{times} times a text of {len(some)} is too long")
        elif isinstance(some, int) and some.bit_length() > _MOST_BITS:
            raise SecurityError("the product of such numbers is too large")
