"""Results as tables for a terminal; plain text where stdout is none."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from app.compare.page import FILE_HEAD, PAIR_HEAD, file_cells, notes, pair_cells, votes_line
from app.compare.results import Results
from quantize.terminal import Console
from runtimes.untrusted import visible

_WIDE = 200  # of a pipe, where nothing is wrapped


def print_tables(results: Results) -> None:
    """Print all but the texts to stdout. Raises BrokenPipeError when nobody reads it."""
    width = None if sys.stdout.isatty() else _WIDE
    shown = Console(width=width, highlight=False, emoji=False, markup=False)
    for table in figures(results):
        shown.print(table)
        shown.print()
    for votes in results.votes:
        shown.print(votes_line(votes, results))
    for note in notes(results):
        shown.print(note, style="dim")


def figures(results: Results, hues: Sequence[str] = ()) -> list[Table]:
    """Of the files, and of the pairs; names are in the colours of the files, if these are given."""
    files = _table(FILE_HEAD, [file_cells(file) for file in results.files], hues)
    pairs = [pair_cells(pair, results) for pair in results.pairs]
    return [files, _table(PAIR_HEAD, pairs, hues[1:])]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], hues: Sequence[str] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    used = [n for n in range(len(head)) if any(line[n] for line in lines)]
    for at in used:
        table.add_column(head[at], justify="right" if at else "left", overflow="fold")
    for number, line in enumerate(lines):
        name = Text(visible(line[0]), hues[number % len(hues)] if hues else "")
        table.add_row(name, *(line[at] for at in used[1:]))
    return table
