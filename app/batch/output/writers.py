"""Records into a file of each form."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.batch.output.columns import Kind, as_kind, cells_of, columns_of, in_order
from app.batch.output.formats import OutputFormat
from app.batch.output.wire import dump_line
from runtimes.errors import RequestError

if TYPE_CHECKING:
    import pyarrow

# Called as often as the records are needed; each call begins anew.
Records = Callable[[], Iterable[Mapping[str, Any]]]

_BUFFER = 1 << 20
_GROUP_ROWS = 2048  # of a Parquet file; held in memory
_JSON = {b"ingot": b"json"}  # of a Parquet column whose texts are JSON


def check_format(format: OutputFormat) -> None:
    """Raises RequestError when what ``format`` needs is not installed."""
    if format == "parquet":
        _pyarrow()


def write_records(path: Path, format: OutputFormat, records: Records) -> None:
    """Write all of ``records``. Raises OSError when the file cannot grow.

    Tables go through the records twice: their columns must be known before the first row.
    """
    match format:
        case "csv":
            _write_csv(path, records)
        case "parquet":
            _write_parquet(path, records)
        case _:
            with path.open("wb", buffering=_BUFFER) as file:
                for record in records():
                    file.write(dump_line(dict(record)))


def _write_csv(path: Path, records: Records) -> None:
    columns = in_order(columns_of(records()))
    # Half a surrogate pair, which JSON may spell, has no UTF-8: it is written as its escape.
    with path.open(
        "w", encoding="utf-8", errors="backslashreplace", newline="", buffering=_BUFFER
    ) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for record in records():
            cells = cells_of(record)
            writer.writerow([_csv_cell(cells.get(name), kind) for name, kind in columns.items()])


def _csv_cell(value: Any, kind: Kind) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    # Beside other types in its column, a text stays readable as it is.
    return value if isinstance(value, str) else as_kind(value, kind)


def _write_parquet(path: Path, records: Records) -> None:
    arrow = _pyarrow()
    import pyarrow.parquet

    columns = in_order(columns_of(records()))
    types = {
        "empty": arrow.null(),
        "boolean": arrow.bool_(),
        "integer": arrow.int64(),
        "number": arrow.float64(),
        "text": arrow.string(),
        "json": arrow.string(),
    }
    schema = arrow.schema(
        [
            arrow.field(name, types[kind], metadata=_JSON if kind == "json" else None)
            for name, kind in columns.items()
        ]
    )
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _groups(records()):
            table = {
                name: [_parquet_cell(cells.get(name), kind) for cells in group]
                for name, kind in columns.items()
            }
            writer.write_table(arrow.table(table, schema=schema))


def json_columns(schema: pyarrow.Schema) -> list[str]:
    """The columns of a Parquet file whose texts are JSON, as ``write_records`` has marked them."""
    return [column.name for column in schema if column.metadata == _JSON]


def _groups(records: Iterable[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    cells = map(cells_of, records)
    while group := list(islice(cells, _GROUP_ROWS)):
        yield group


def _parquet_cell(value: Any, kind: Kind) -> Any:
    value = as_kind(value, kind)
    if isinstance(value, str):
        return value.encode("utf-8", errors="backslashreplace").decode("utf-8")
    return value


def _pyarrow() -> pyarrow:
    try:
        import pyarrow
    except ImportError as error:
        raise RequestError(
            "Parquet needs pyarrow: pip install 'ingot[parquet]', or write .jsonl or .csv"
        ) from error
    return pyarrow
