"""Prompts made from a row's fields by a Jinja2 template, in a sandbox with bounds on its output.

Rows are data: nothing in them is ever taken for template code. The template itself can neither
reach Python's internals nor change the row; what a short one could blow up to gigabytes is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from app.here import named_text
from app.openai.validation import InputError
from runtimes.errors import RequestError
from runtimes.templates.budget import Budget, within
from runtimes.templates.filters import tojson
from runtimes.templates.sandbox import Sandbox

# Characters of a prompt: far beyond any context, far below what memory holds for all running rows.
MOST_CHARACTERS = 16 * 2**20
_MOST_SOURCE = 2**17  # characters of a template
# Filters that pad to any width a number says.
_PADDING_FILTERS = ("center", "indent", "format", "wordwrap", "slice", "batch")
_SHOWN = 12


class RowTemplate:
    """A compiled template."""

    def __init__(self, text: str, name: str) -> None:
        """Compile ``text``, which messages call ``name``. Raises RequestError with the line."""
        if len(text) > _MOST_SOURCE:
            raise RequestError(
                f"{name} has {len(text):,} characters, and {_MOST_SOURCE:,} are the most that is"
                " taken"
            )
        environment = Sandbox(undefined=jinja2.StrictUndefined, keep_trailing_newline=False)
        for filter_name in _PADDING_FILTERS:
            del environment.filters[filter_name]
        # Jinja2's own escapes for HTML.
        environment.filters["tojson"] = partial(tojson, default=_no_json)
        try:
            with within(Budget()):
                self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(f"{name}, line {error.lineno}: {error.message}") from error
        except Exception as error:  # also what Python says of the code that is made of it
            raise RequestError(f"{name} does not compile: {str(error)[:500]}") from error

    @classmethod
    def load(cls, path: Path) -> RowTemplate:
        """The template in a UTF-8 file. Raises RequestError."""
        try:
            return cls(named_text(path, "utf-8-sig"), str(path))
        except UnicodeDecodeError as error:
            raise RequestError(f"{path} is not UTF-8") from error
        except ValueError as error:
            raise RequestError(f"{path} is no template: {error}") from error
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error

    def render(self, fields: Mapping[str, Any]) -> str:
        """The text for a row, its fields by name and, for names that are no words, in ``row``.

        Raises InputError: the row lacks a field (code ``missing_field``), the template fails on
        it, or makes too much text.
        """
        pieces, room = [], MOST_CHARACTERS
        try:
            with within(Budget()):
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
