"""The kinds of input, each as a stream of its rows' fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.batch.input.csv_rows import csv_rows
from app.batch.input.folder_rows import folder_rows
from app.batch.input.lines import decode, json_object, numbered_lines
from app.batch.input.parquet_rows import parquet_rows
from app.batch.input.raw import Format, Raw
from app.batch.input.streams import InputStream
from app.batch.input.tasks import BadRowError, RowProblem

_BLANK = b" \t\r\n\f\v"


def read_rows(path: Path, name: str, format: Format) -> Iterator[Raw]:
    """Every row in order. Blank lines are no rows.

    What is wrong with one row is that row's problem; raises RequestError when the input as a whole
    cannot be read.
    """
    return _READERS[format](path, name)


def _jsonl_rows(path: Path, name: str) -> Iterator[Raw]:
    return _by_line(path, name, lambda raw: json_object(decode(raw)))


def _text_rows(path: Path, name: str) -> Iterator[Raw]:
    return _by_line(path, name, lambda raw: {"prompt": decode(raw)})


def _by_line(path: Path, name: str, parse: Callable[[bytes], Mapping[str, Any]]) -> Iterator[Raw]:
    with InputStream(path, name) as stream:
        for number, raw in numbered_lines(stream):
            if isinstance(raw, RowProblem):
                yield Raw(number, problem=raw)
            elif raw.strip(_BLANK):
                try:
                    yield Raw(number, parse(raw.rstrip(b"\r\n")))
                except BadRowError as error:
                    yield Raw(number, problem=error.problem)


_READERS: dict[Format, Callable[[Path, str], Iterator[Raw]]] = {
    "jsonl": _jsonl_rows,
    "text": _text_rows,
    "csv": csv_rows,
    "parquet": parquet_rows,
    "folder": folder_rows,
}
