"""Records as a Parquet table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.batch.output.columns import Kind, as_kind, cells_of, columns_of
from app.batch.output.records import OutputFormat, Records, flat_record
from runtimes.errors import RequestError

if TYPE_CHECKING:
    import pyarrow

_GROUP_ROWS = 2048  # held in memory
_JSON = {b"ingot": b"json"}  # of a column whose texts are JSON


def _write(path: Path, records: Records) -> None:
    """Goes through the records twice: the columns must be known before the first row."""
    arrow = _pyarrow()
    import pyarrow.parquet

    columns = columns_of(records())
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
    rows = map(cells_of, records())
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(islice(rows, _GROUP_ROWS)):
            table = {
                name: [_cell(cells.get(name), kind) for cells in group]
                for name, kind in columns.items()
            }
            writer.write_table(arrow.table(table, schema=schema))


def _cell(value: Any, kind: Kind) -> Any:
    value = as_kind(value, kind)
    if isinstance(value, str):
        return value.encode("utf-8", errors="backslashreplace").decode("utf-8")
    return value


def _read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        texts = [column.name for column in file.schema_arrow if column.metadata == _JSON]
        for batch in file.iter_batches(1024):
            for record in batch.to_pylist():
                values = {name: json.loads(record[name]) for name in texts if record[name]}
                yield record["index"], record | values


def _pyarrow() -> pyarrow:
    try:
        import pyarrow
    except ImportError as error:
        raise RequestError(
            "Parquet needs pyarrow: pip install 'ingot[parquet]', or write .jsonl or .csv"
        ) from error
    return pyarrow


PARQUET = OutputFormat(
    "parquet", flat_record, _write, _read, suffixes=(".parquet", ".pq"), check=_pyarrow
)
