"""Rows of a CSV file (RFC 4180) with a header: each cell a text under its column's name."""

from __future__ import annotations

import csv
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from app.batch.input.lines import MAX_LINE, InputStream, numbered_lines
from app.batch.input.row import Raw, Reader
from app.openai.validation import InputError, Problem
from runtimes.errors import RequestError

_DELIMITERS = ",;\t"  # whichever the header has most of


class _Lines:
    """Lines for Python's reader, which reads on after an exception; a generator would not. Those of
    the present row can be read again, when a quote in the first turns out to be a mistake."""

    def __init__(self, stream: InputStream) -> None:
        self._lines = numbered_lines(stream)
        self._again: deque[tuple[int, str | Problem]] = deque()
        self._taken: list[tuple[int, str | Problem]] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self._taken.append(self._again.popleft() if self._again else next(self._lines))
        line = self._taken[-1][1]
        if isinstance(line, Problem):
            raise InputError(line.code, line.message)
        return line

    def begin_row(self) -> None:
        """What was taken is done with."""
        self._taken.clear()

    @property
    def first(self) -> int:
        """The number of the row's first line."""
        return self._taken[0][0]

    def only_first(self) -> int:
        """Give all but the first line of this row back; the number of the last."""
        self._again.extendleft(reversed(self._taken[1:]))
        return self._taken[-1][0]


def _read(path: Path, name: str) -> Iterator[Raw]:
    """Rows below the header, numbered by the line where they begin. A row that is no CSV ends with
    its first line: a quote that is never closed costs one row."""
    with InputStream(path, name) as stream:
        lines = _Lines(stream)
        try:
            first = next(lines, None)
            if first is None:
                return
            delimiter = max(_DELIMITERS, key=first.count)
            header = _header(next(csv.reader([first], delimiter=delimiter, strict=True)), name)
        except (InputError, csv.Error, StopIteration) as error:
            raise RequestError(f"{name}: its first line does not name columns: {error}") from error
        csv.field_size_limit(MAX_LINE)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        yield from _rows(reader, lines, header)


def _rows(reader: Iterator[list[str]], lines: _Lines, header: list[str]) -> Iterator[Raw]:
    while True:
        lines.begin_row()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (InputError, csv.Error) as error:
            first, last = lines.first, lines.only_first()
            if isinstance(error, InputError):
                problem = error.problem
            else:
                problem = Problem("invalid_csv", f"not CSV: {error}")
            if first != last or "unexpected end" in str(error):
                problem = Problem(
                    "invalid_csv", f"a quote is not closed rightly (looked up to line {last})"
                )
            yield Raw(first, problem=problem)
            continue
        if not any(cells):  # a blank line, or one of delimiters alone
            continue
        fields = {key: cell for key, cell in zip(header, cells, strict=False) if key}
        message = f"the row has {len(cells)} cells; the header has {len(header)}"
        wrong = Problem("invalid_csv", message) if len(cells) != len(header) else None
        yield Raw(lines.first, fields, wrong)


def _header(names: list[str], name: str) -> list[str]:
    """Column names; columns without one are left out of the rows."""
    header = [text.strip() for text in names]
    for text, count in Counter(filter(None, header)).items():
        if count > 1:
            raise RequestError(f"{name} has two columns called {text[:60]!r}; rename one of them")
    if not any(header):
        raise RequestError(f"{name}: its first line must name the columns; it is blank")
    return header


CSV = Reader(
    "csv",
    _read,
    "below the line that names the columns, write a line for each prompt",
    suffixes=(".csv", ".tsv"),
)
