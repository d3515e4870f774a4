"""A private name of Textual's that a class takes by accident breaks it in ways hard to see: a
widget that has its own ``_closed`` is never removed, and who waits for that waits forever.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache

from textual.message_pump import MessagePump

import app.tui

MEANT = {  # overridden on purpose
    "AlignedTable": {"_update_from_block"},
    "AnswerMarkdown": {"_parse_markdown", "_markdown", "_last_parsed_line"},
    "IngotApp": {"_check_bindings", "_end_batch", "_load_screen_css"},
    "Prompt": {"_on_key"},
    "Styled": {"_compositor_refresh", "_compositor", "_on_screen_resume"},
    "Transcript": {"_scroll_update", "_size_updated"},
    "_Readline": {"_on_key"},
}


@cache
def classes_of(module: str) -> dict[str, ast.ClassDef]:
    nodes = ast.walk(ast.parse(inspect.getsource(sys.modules[module])))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


@cache
def private(cls: type) -> frozenset[str]:
    """The names with one underscore that its source gives a class or its objects."""
    node = classes_of(cls.__module__).get(cls.__name__)
    names: set[str] = set()
    for one in ast.walk(node) if node else ():
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            names |= {one.attr} if ast.unparse(one.value) == "self" else set()
        elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(one.name)
    return frozenset(name for name in names if name[0] == "_" and name[:2] != "__")


def below(cls: type) -> Iterator[type]:
    for one in cls.__subclasses__():
        yield one
        yield from below(one)


def test_only_those_names_of_textual_are_taken_that_are_meant() -> None:
    for module in pkgutil.walk_packages(app.tui.__path__, "app.tui."):
        importlib.import_module(module.name)
    taken: dict[str, set[str]] = {}
    for cls in below(MessagePump):
        theirs = [private(one) for one in cls.__mro__ if one.__module__.startswith("textual.")]
        for one in (one for one in cls.__mro__ if one.__module__.startswith("app.")):
            both = private(one) & frozenset().union(*theirs)
            if both:
                taken.setdefault(one.__name__, set()).update(both)
    assert taken == MEANT
