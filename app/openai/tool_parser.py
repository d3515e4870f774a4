"""Tells calls of tools from the text of an answer, as it comes.

What cannot be read as a call of one of the tools is text: nothing is ever left out.
"""

import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from app.openai.tool_forms import ToolForm


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    """More of the thought before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call, by its number in the answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments, which are JSON."""

    index: int
    text: str


Delta = ContentDelta | ThoughtDelta | CallBegin | ArgumentsDelta


class ToolParser:
    """Reads one answer. White space between the parts of a call may be any."""

    def __init__(self, form: ToolForm, names: Collection[str]) -> None:
        self._form, self._names = form, frozenset(names)
        self._held = ""
        self._calls = 0
        self._said = False  # whether there was any text but white space
        self._json: _JsonObject | None = None  # of the call that is being read
        self._closing = False  # behind a call's arguments
        self._between = False  # behind a call

    def feed(self, text: str) -> list[Delta]:
        """Parse ``text``, the next part of the answer."""
        self._held += text
        return list(self._read(final=False))

    def end(self) -> list[Delta]:
        """Return the deltas that were held back, at the end of the answer."""
        return list(self._read(final=True))

    def begins_call(self, text: str) -> bool:
        """Whether ``text``, which was held back to the end, begins as a call does."""
        mark, text = (self._form.marker or self._form.begin[:1]).strip(), text.lstrip()
        return text.startswith(mark) or (len(text) > 1 and mark.startswith(text))

    def _read(self, *, final: bool) -> Iterator[Delta]:
        while self._held:
            before = self._held, self._json, self._closing
            if self._json is not None:
                yield from self._arguments()
            elif self._closing:
                if not self._close(final=final):
                    return
            else:
                yield from self._text(final=final)
            if (self._held, self._json, self._closing) == before:
                return

    def _arguments(self) -> Iterator[Delta]:
        assert self._json is not None
        count = self._json.take(self._held)
        text, self._held = self._held[:count], self._held[count:]
        yield ArgumentsDelta(self._calls - 1, text)
        if self._json.ended:
            self._json, self._closing = None, True

    def _close(self, *, final: bool) -> bool:
        """Pass over the end of a call; False while it may still come."""
        end = _literal(self._held, 0, self._form.end)
        if end is None and not final:
            return False
        # At the end of an answer that was cut off, a piece of it may be all there is.
        self._held = self._held[max(0, end or 0) if end is not None else len(self._held) :]
        self._closing, self._between = False, True
        return True

    def _text(self, *, final: bool) -> Iterator[Delta]:
        held, at = self._held, 0
        while at < len(held):
            if held[at].isspace():
                at += 1
                continue
            found = self._head(at)
            if isinstance(found, tuple):
                end, name = found
                yield from self._say(held[:at].rstrip())
                yield CallBegin(self._calls, f"call_{secrets.token_hex(12)}", name)
                self._calls += 1
                self._held, self._json = held[end:], _JsonObject()
                return
            if found is None and not final:
                break  # it may become a call
            if found is not None and found > 0:  # the end of the calls
                self._held, self._between = held[found:], False
                return
            at += 1
        # White space before a call is no part of the text.
        cut = len(held) if final else len(held[:at].rstrip())
        self._held = held[cut:]
        if final and self._calls and not held.strip():
            return
        yield from self._say(held[:cut])

    def _say(self, text: str) -> Iterator[Delta]:
        if text:
            if not text.isspace():
                self._said, self._between = True, False
            yield ContentDelta(text)

    def _head(self, at: int) -> tuple[int, str] | int | None:
        """Parse a call's head: return the start of its arguments, and its name. Without a call,
        return the length of the calls' end at this place; None where more text is needed.
        """
        form, held = self._form, self._held
        if not form.marker and (self._said or self._calls or held[:at].strip()):
            return 0
        listed = bool(form.closing) and self._between and not held[:at].strip()
        begun = form.marker + form.opening if not listed else form.separator or ""
        end = _literal(held, at, begun + form.begin)
        if listed and end == -1:
            return max(0, _literal(held, at, form.closing) or 0)
        if end is None or end < 0:
            return None if end is None else 0
        until = next((i for i in range(end, len(held)) if held[i] == form.middle[0]), None)
        name = held[end:until]
        if until is None:
            likely = any(known.startswith(name) for known in self._names)
            return None if likely else 0
        if name not in self._names:
            return 0
        end = _literal(held, until, form.middle)
        while end is not None and 0 <= end < len(held) and held[end].isspace():
            end += 1
        if end is None or end == len(held):
            return None
        return (end, name) if end >= 0 and held[end] == "{" else 0


def _literal(text: str, at: int, literal: str) -> int | None:
    """Return the end of ``literal`` at this place; -1 where another text stands there, None where
    the text ends within the literal. White space may stand anywhere and is skipped.
    """
    for wanted in literal:
        if wanted.isspace():
            continue
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return None
        if text[at] != wanted:
            return -1
        at += 1
    return at


class _JsonObject:
    """Finds the end of an object."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = self.ended = False

    def take(self, text: str) -> int:
        """How much of ``text``, which follows what was taken before, belongs to it."""
        for at, character in enumerate(text):
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._quoted = False
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.ended = True
                    return at + 1
        return len(text)
