"""Records as a CSV table."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.batch.output.columns import Kind, as_kind, cells_of, columns_of
from app.batch.output.records import OutputFormat, Records, flat_record

_BUFFER = 1 << 20
_MOST_CELL = 1 << 28


def _write(path: Path, records: Records) -> None:
    """Goes through the records twice: the columns must be known before the first row."""
    columns = columns_of(records())
    # Half a surrogate pair, which JSON may spell, has no UTF-8: it is written as its escape.
    with path.open(
        "w", encoding="utf-8", errors="backslashreplace", newline="", buffering=_BUFFER
    ) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for record in records():
            cells = cells_of(record)
            writer.writerow([_cell(cells.get(name), kind) for name, kind in columns.items()])


def _cell(value: Any, kind: Kind) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    # Beside other types in its column, a text stays readable as it is.
    return value if isinstance(value, str) else as_kind(value, kind)


def _read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(min(_MOST_CELL, sys.maxsize))
    with path.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            yield int(record["index"]), {name: value or None for name, value in record.items()}


CSV = OutputFormat("csv", flat_record, _write, _read, suffixes=(".csv",))
