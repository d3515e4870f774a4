"""Budget of one template while it is compiled or rendered.

A template that comes with a model, or a row, may ask for anything: loops within loops, texts that
double, numbers of a billion digits. Everything that a template can repeat or make counts here, in
the thread that renders it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError

from runtimes.untrusted import Bounds, excess

MOST_SECONDS = 3.0  # of processor time in one rendering
MOST_MADE = 32 * 2**20  # characters of all texts that are made; 4 bytes each at worst
_DEPTH, _VALUES = 100, 300_000  # of a list or object that is compared, written or hashed
_LONG = 4096  # characters that are quickly copied
_STEP = 16  # characters that a step counts for: an object that it may leave behind
_SCALARS = frozenset({str, int, float, bool, type(None)})


class Budget:
    """Processor time, and characters that may be made: ``MOST_MADE``, and what ``more`` says when
    these are used up."""

    __slots__ = ("_deadline", "_more", "_steps", "room")

    def __init__(self, more: Callable[[], int] | None = None) -> None:
        self.room = MOST_MADE
        self._more = more
        self._deadline = time.thread_time() + MOST_SECONDS
        self._steps = 0

    def tick(self, characters: int = 0) -> None:
        """Count a step, such as one turn of a loop, and what it makes. Raises SecurityError."""
        self.room -= characters + _STEP
        self._steps += 1
        if self.room < 0 or not self._steps & 63 or characters > _LONG:
            self.check()

    def check(self) -> None:
        """Raise SecurityError if it has taken too long, or has made too much."""
        if self.room < 0 and self._more is not None:
            self.room += self._more()
            self._more = None
        if self.room < 0:
            raise SecurityError("it repeats too much, or builds too much text")
        if time.thread_time() > self._deadline:
            raise SecurityError(f"it takes longer than {MOST_SECONDS:.0f} seconds")

    def whole(self, value: Any, depth: int = _DEPTH, share: int = 1) -> Any:
        """``value``, which is to be compared, written or hashed as a whole. Raises SecurityError
        where that could take long: lists may have one another in them many times."""
        kind = type(value)
        if kind in _SCALARS:
            if kind is str and len(value) > _LONG:
                self.check()
            return value
        if isinstance(value, Undefined):
            return value
        self.check()
        if beyond := excess(value, Bounds(depth, _VALUES, self.room // share)):
            raise SecurityError(f"a value {beyond}")
        return value

    def text(self, value: Any) -> str:
        """``str(value)``."""
        if type(value) is str:
            return value
        return self.made(str(self.whole(value)))

    def made(self, text: str) -> str:
        """``text``, which has just been made."""
        self.tick(len(text))
        return text

    def counted(self, values: Iterable[Any], characters: int = 0) -> Iterator[Any]:
        """The values, each of which is a step that makes so much."""
        for value in values:
            self.tick(characters)
            yield value


class _Running(threading.local):
    budget: Budget | None = None


_running = _Running()


def output(value: Any) -> Any:
    """Convert and count the value that ``{{ value }}`` writes."""
    budget = _running.budget
    if budget is None or type(value) is not str:
        return current().text(value)
    budget.room -= len(value) + _STEP
    if budget.room < 0:
        budget.check()
    return value


@contextmanager
def within(budget: Budget) -> Iterator[Budget]:
    """Charge the templates of this thread to ``budget``."""
    before, _running.budget = _running.budget, budget
    try:
        yield budget
    finally:
        _running.budget = before


def current() -> Budget:
    """The budget of what this thread renders."""
    if _running.budget is None:
        raise SecurityError("a template is used outside of its bounds")
    return _running.budget
