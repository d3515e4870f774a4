"""Rows of plain text: a line is a prompt."""

from collections.abc import Iterator
from pathlib import Path

from app.batch.input.lines import rows_by_line
from app.batch.input.row import Raw, Reader


def _rows(path: Path, name: str) -> Iterator[Raw]:
    return rows_by_line(path, name, lambda line: {"prompt": line})


TEXT = Reader("text", _rows, "write one prompt a line", suffixes=(".txt", ".text", ".md"))
