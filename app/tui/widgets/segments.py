"""Streamed Markdown in parts that can each be shown by what suits it: prose, and fenced code.

Only fences that begin in the first column are told apart; an indented one belongs to the list that
it stands in.
"""

import re
from dataclasses import dataclass

# CommonMark 0.31, 4.5: a backtick fence's info string has no backticks.
_OPEN = re.compile(r"(`{3,})([^`\n]*)\n|(~{3,})([^\n]*)\n")
_MAYBE_OPEN = re.compile(r"`{1,2}$|`{3,}[^`\n]*$|~{1,2}$|~{3,}[^\n]*$")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # str.splitlines would also break at other characters
_BULLET = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]")
_LONG = 4_000  # characters of one list, after which a part of it is settled


@dataclass(slots=True)
class Section:
    """A stretch of prose, or a block of code."""

    text: str
    code: bool = False
    language: str = ""


class Splitter:
    """Feed it text as it comes: the last of ``sections`` grows, or others follow it. What may yet
    become a fence is held back until it is clear."""

    def __init__(self, text: str = "") -> None:
        """``text`` is a whole one."""
        self.sections: list[Section] = []
        self._fence = ""  # the open fence
        self._held = ""
        self._blank = ""  # line ends that open no section by themselves
        self._fresh = True  # what comes next begins a line
        self.feed(text, last=bool(text))

    def feed(self, text: str, *, last: bool = False) -> None:
        """``last`` gives up what was held back."""
        text, self._held = self._held + text, ""
        for line in _LINE.findall(text):
            whole = line.endswith("\n")
            if self._fresh and not whole and not last and self._may_be_fence(line):
                self._held = line
                return
            if not (self._fresh and self._is_fence(line)):
                self._add(line)
            self._fresh = whole

    def _may_be_fence(self, line: str) -> bool:
        if not self._fence:
            return _MAYBE_OPEN.match(line) is not None
        return not line.strip(f" \t\r{self._fence[0]}") and len(line) < len(self._fence) + 8

    def _is_fence(self, line: str) -> bool:
        """Whether a line opens a block of code, or ends it."""
        if self._fence:
            mark = line.strip()
            indent = len(line) - len(line.lstrip(" "))
            closes = len(mark) >= len(self._fence) and not mark.strip(self._fence[0]) and indent < 4
            self._fence = "" if closes else self._fence
            return closes
        match = _OPEN.fullmatch(line)
        if match is None:
            return False
        self._fence, self._blank = match[1] or match[3], ""
        info = (match[2] or match[4] or "").split()
        self.sections.append(Section("", code=True, language=info[0] if info else ""))
        return True

    def _add(self, text: str) -> None:
        if self.sections and self.sections[-1].code == bool(self._fence):
            self.sections[-1].text += text
            return
        self._blank += text
        if self._blank.strip():
            self.sections.append(Section(self._blank))
            self._blank = ""


def copyable(text: str) -> list[tuple[str, str]]:
    """What can be copied of a message, (what it is, its text): all of it, then each block of
    code."""
    found = [("The whole message", text)]
    for section in Splitter(text).sections:
        if section.code:
            code, language = section.text, f", {section.language}" if section.language else ""
            lines = code.count("\n") + (not code.endswith("\n"))
            first = next((line.strip() for line in code.splitlines() if line.strip()), "")
            size = f"{lines} line{'s' if lines > 1 else ''}"
            found.append((f"Code {len(found)}{language}, {size}: {first}", code.removesuffix("\n")))
    return found


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
