"""The piece of a text that shows why a search found it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from app.chat.store.words import fold

_BEFORE = 24  # characters before the match that is shown first
_LENGTH = 120
_LONGEST = 200_000  # characters that are looked through; what matches further on shows no mark


def snippet(
    text: str, patterns: Sequence[re.Pattern[str]]
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """One line of ``text`` around the first match of one of ``patterns``, the most telling first,
    and where all of them match in it. The patterns are for folded text."""
    folded = fold(text[:_LONGEST])
    found = (match for match in (p.search(folded) for p in patterns) if match)
    first = next(found, None)
    line = _around(text, first.start() if first else 0)
    shown = fold(line)
    marks = {match.span() for p in patterns for match in p.finditer(shown) if match.group()}
    return line, _apart(sorted((start, _with_signs(line, end)) for start, end in marks))


def _with_signs(line: str, end: int) -> int:
    """Past vowel signs and accents, which belong to the letter before them."""
    while end < len(line) and unicodedata.category(line[end]).startswith("M"):
        end += 1
    return end


def _around(text: str, at: int) -> str:
    start = max(0, min(at - _BEFORE, len(text) - _LENGTH))
    if start:  # begin with a whole word, when there is one
        space = re.compile(r"\s").search(text, start, at)
        start = space.end() if space else start
    end = start + _LENGTH
    line = " ".join(text[start:end].split())
    return ("…" if text[:start].strip() else "") + line + ("…" if text[end:].strip() else "")


def _apart(marks: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Overlapping ranges made one."""
    joined: list[tuple[int, int]] = []
    for start, end in marks:
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)
