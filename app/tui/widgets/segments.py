"""Streamed Markdown in parts that can each be shown by what suits it: prose, and fenced code.

Only fences that begin in the first column are told apart; an indented one belongs to the list that
it stands in.
"""

import re
from collections.abc import Iterable, Iterator
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


@dataclass(slots=True)
class Event:
    """``text`` is what to show."""

    kind: Kind
    text: str


@dataclass(slots=True)
class Section:
    """A stretch of prose, or a block of code."""

    code: bool = False
    language: str = ""
    text: str = ""


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
        return events

    def _line(self, line: str, events: list[Event], *, last: bool) -> None:
        whole = line.endswith("\n")
        if not self._fresh:
            _add(events, Kind.CODE if self._fence else Kind.PROSE, line)
            self._fresh = whole
        elif self._fence:
            self._code(line, events, whole=whole or last)
        elif match := _OPEN.fullmatch(line):
            self._fence = match[1] or match[3]
            info = (match[2] or match[4] or "").split()
            _add(events, Kind.OPEN, info[0] if info else "")
        elif not whole and not last and _MAYBE_OPEN.match(line):
            self._held = line
        else:
            _add(events, Kind.PROSE, line)
            self._fresh = whole

    def _code(self, line: str, events: list[Event], *, whole: bool) -> None:
        mark = line.strip(" \t\r\n")
        fence = self._fence
        closes = len(mark) >= len(fence) and not mark.strip(fence[0]) and line[:4].strip(" ") != ""
        if closes and whole:
            _add(events, Kind.CLOSE, "")
            self._fence = ""
        elif not whole and not mark.strip(fence[0]) and len(line) < len(fence) + 8:
            self._held = line
            return
        else:
            _add(events, Kind.CODE, line)
        self._fresh = line.endswith("\n")


def sections(events: Iterable[Event]) -> Iterator[Section]:
    """Those of a whole text; prose may be blank."""
    section = Section()
    for event in events:
        if event.kind in (Kind.PROSE, Kind.CODE):
            section.text += event.text
        else:
            yield section
            section = Section(event.kind is Kind.OPEN, event.text)
    if section.code or section.text:
        yield section


def settled(text: str) -> int:
    """How many characters of streamed Markdown without fences are blocks that have ended.

    A block has ended where a blank line is followed by a line that begins in the first column. A
    list continues over blank lines as long as items follow; a long one is settled item by item.
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


def _add(events: list[Event], kind: Kind, text: str) -> None:
    """Neighbours of one kind are one event."""
    if events and kind in (Kind.PROSE, Kind.CODE) and events[-1].kind is kind:
        events[-1].text += text
    else:
        events.append(Event(kind, text))
