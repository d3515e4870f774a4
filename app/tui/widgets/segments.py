"""Streamed Markdown in parts that can each be shown by what suits it: prose, and fenced code.

Only fences that begin in the first column are told apart; an indented one belongs to the list that
it stands in. Every character of the input is in exactly one event's ``raw``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

# CommonMark 0.31, 4.5: a backtick fence's info string has no backticks.
_OPEN = re.compile(r"(`{3,})([^`\n]*)\n|(~{3,})([^\n]*)\n")
_MAYBE_OPEN = re.compile(r"`{1,2}$|`{3,}[^`\n]*$|~{1,2}$|~{3,}[^\n]*$")
_BULLET = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]")
_LONG = 4_000  # characters of one list, after which a part of it is settled


class Kind(StrEnum):
    """What an event says."""

    PROSE = "prose"
    OPEN = "open"  # a fence opens; ``text`` is its language
    CODE = "code"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Event:
    """``raw`` is the source of it, ``text`` what to show."""

    kind: Kind
    text: str
    raw: str


class Splitter:
    """Feed it text as it comes. What may yet become a fence is held back until it is clear."""

    def __init__(self) -> None:
        self._fence = ""  # the open fence
        self._held = ""
        self._fresh = True  # what comes next begins a line

    def feed(self, text: str, *, last: bool = False) -> list[Event]:
        """What ``text`` adds; ``last`` gives up what was held back."""
        text, self._held = self._held + text, ""
        events: list[Event] = []
        for line in _lines(text):
            self._line(line, events, last=last)
        return _merged(events)

    def _line(self, line: str, events: list[Event], *, last: bool) -> None:
        whole = line.endswith("\n")
        if not self._fresh:
            kind = Kind.CODE if self._fence else Kind.PROSE
            events.append(Event(kind, line, line))
            self._fresh = whole
        elif self._fence:
            self._code(line, events, whole=whole or last)
        elif match := _OPEN.fullmatch(line):
            self._fence = match[1] or match[3]
            info = (match[2] or match[4] or "").split()
            events.append(Event(Kind.OPEN, info[0] if info else "", line))
        elif not whole and not last and _MAYBE_OPEN.match(line):
            self._held = line
        else:
            events.append(Event(Kind.PROSE, line, line))
            self._fresh = whole

    def _code(self, line: str, events: list[Event], *, whole: bool) -> None:
        mark = line.strip(" \t\r\n")
        fence = self._fence
        closes = len(mark) >= len(fence) and not mark.strip(fence[0]) and line[:4].strip(" ") != ""
        if closes and whole:
            events.append(Event(Kind.CLOSE, "", line))
            self._fence = ""
            self._fresh = line.endswith("\n")
        elif not whole and not mark.strip(fence[0]) and len(line) < len(fence) + 8:
            self._held = line
        else:
            events.append(Event(Kind.CODE, line, line))
            self._fresh = line.endswith("\n")


def settled(text: str) -> int:
    """How many characters of streamed Markdown without fences are blocks that have ended.

    A block has ended where a blank line is followed by a line that begins in the first column. A
    list goes on over blank lines as long as items follow; a long one is settled item by item.
    """
    end, at, listing = 0, 0, bool(_BULLET.match(text))
    while (blank := text.find("\n\n", at)) >= 0:
        at = blank + 1
        next_line = blank + 2
        while text.startswith("\n", next_line):
            next_line += 1
        if next_line >= len(text) or text[next_line] in " \t":
            continue
        rest = text[next_line:]
        # One character more shows whether "-" or "1." begins an item.
        if len(rest) < 3 and rest[0] in "-*+0123456789":
            break
        item = bool(_BULLET.match(rest))
        if not (listing and item):
            end = next_line
        listing = item
    if not end and len(text) > _LONG and _BULLET.match(text):
        for match in re.finditer(r"\n(?=(?:[-*+]|\d{1,9}[.)])[ \t])", text):
            end = match.end()
    return end


def _lines(text: str) -> list[str]:
    """Lines with their ends; str.splitlines would also break at other characters."""
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _merged(events: list[Event]) -> list[Event]:
    """Neighbours of one kind as one event."""
    merged: list[Event] = []
    for event in events:
        if merged and event.kind in (Kind.PROSE, Kind.CODE) and merged[-1].kind is event.kind:
            before = merged.pop()
            merged.append(Event(event.kind, before.text + event.text, before.raw + event.raw))
        else:
            merged.append(event)
    return merged
