"""Results as tables for a terminal; plain text where stdout is none."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from app.compare.page import FILE_HEAD, PAIR_HEAD, file_cells, notes, pair_cells, votes_line
from app.compare.results import Results

_WIDE = 200  # of a pipe, where nothing is wrapped


def tables(results: Results) -> str:
    """All but the texts."""
    terminal = sys.stdout.isatty()
    out = io.StringIO()
    shown = Console(
        file=out,
        force_terminal=terminal,
        width=None if terminal else _WIDE,
        highlight=False,
        emoji=False,
        markup=False,
    )
    shown.print(_table(FILE_HEAD, [file_cells(file) for file in results.files]))
    shown.print(_table(PAIR_HEAD, [pair_cells(pair, results) for pair in results.pairs]))
    for votes in results.votes:
        shown.print(votes_line(votes, results))
    for note in notes(results):
        shown.print(note, style="dim")
    return out.getvalue()


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    used = [n for n in range(len(head)) if any(line[n] for line in lines)]
    for at in used:
        table.add_column(head[at], justify="right" if at else "left", overflow="fold")
    for line in lines:
        table.add_row(*(line[at] for at in used))
    return table
