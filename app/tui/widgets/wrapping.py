"""Where a line of text breaks at a width, in terminal cells."""

from __future__ import annotations

import re

from rich.cells import cell_len

_CHUNK = re.compile(r"\s*\S+\s*|\s+")
# What a terminal would obey instead of showing: everything of C0, DEL and C1 but tab and line feed.
_CONTROL: dict[int, str] = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if code not in (0x09, 0x0A)
}
# Line ends of other systems; those of Unicode are line ends for some programs and not for others.
_CONTROL |= {0x0D: "", 0x2028: " ", 0x2029: " "}


def shown(text: str) -> str:
    """``text`` without anything that a terminal would take for a command."""
    return text if text.isascii() and text.isprintable() else text.translate(_CONTROL)


def wrap(line: str, width: int, *, words: bool) -> list[tuple[int, int]]:
    """The (start, end) of each row of a line: broken between words, or wherever the width ends.

    At least one row; no row is wider than ``width`` unless a single character is.
    """
    if width < 1 or (len(line) <= width and (line.isascii() or cell_len(line) <= width)):
        return [(0, len(line))]
    return _by_words(line, width) if words else _folded(line, 0, len(line), width)


def _by_words(line: str, width: int) -> list[tuple[int, int]]:
    rows: list[tuple[int, int]] = []
    start = end = 0
    for match in _CHUNK.finditer(line):
        if cell_len(line[start : match.end()].rstrip()) <= width:
            end = match.end()
            continue
        if end > start:
            rows.append((start, end))
        start, end = match.span()
        if cell_len(line[start:end].rstrip()) > width:
            *full, (start, end) = _folded(line, start, end, width)
            rows += full
    rows.append((start, end))
    return rows


def _folded(line: str, start: int, end: int, width: int) -> list[tuple[int, int]]:
    if line.isascii():
        return [(at, min(at + width, end)) for at in range(start, end, width)] or [(start, end)]
    rows, cells = [], 0
    for at in range(start, end):
        size = cell_len(line[at])
        if cells + size > width and at > start:
            rows.append((start, at))
            start, cells = at, 0
        cells += size
    rows.append((start, end))
    return rows
