"""Records as rows of a CSV or Parquet table: columns, their types and cells; and the list of all
output formats."""

from __future__ import annotations

import codecs
import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from app.batch.input.scan import InputScan
from app.batch.output.records import (
    _AS_TEXT,
    JSONL,
    OPENAI,
    OutputFormat,
    Records,
    _escapes,
    flat_record,
)
from app.openai.answer import RECORD_NAMES
from runtimes.errors import RequestError

if TYPE_CHECKING:
    import pyarrow


Kind = Literal["empty", "boolean", "integer", "number", "text", "vector", "json"]

# Objects of the record that become a column for each of their values, such as usage.prompt_tokens.
_SPREAD = frozenset({"usage", "timings", "error"})
_VECTOR = "embedding"  # where Parquet has lists of float32
_INT64 = 2**63
_BUFFER = 1 << 20
_MOST_CELL = 1 << 28
_GROUP_ROWS = 2048  # of a Parquet file, held in memory
_JSON = {b"ingot": b"json"}  # of a Parquet column whose texts are JSON


def cells_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without nesting. Lists and objects of the input stay what they are."""
    cells: dict[str, Any] = {}
    for name, value in record.items():
        if name in _SPREAD and isinstance(value, Mapping):
            cells.update({f"{name}.{part}": inner for part, inner in value.items()})
        else:
            cells[name] = value
    return cells


def columns_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Kind]:
    """Every column of the records with the type that holds all of its cells: whole numbers beside
    others are numbers, cells of types that differ are JSON. The columns of the answer stand behind
    those of the input, errors last, whichever came first."""
    columns: dict[str, Kind] = {}
    for record in records:
        for name, value in cells_of(record).items():
            kind = _kind_of(value)
            if name == _VECTOR and isinstance(value, list) and {*map(type, value)} == {float}:
                kind = "vector"
            columns[name] = _both(columns.get(name, "empty"), kind)
    return {name: columns[name] for name in sorted(columns, key=_rank)}


def _kind_of(value: Any) -> Kind:
    match value:
        case None:
            return "empty"
        case bool():
            return "boolean"
        case int():
            return "integer" if -_INT64 <= value < _INT64 else "json"
        case float():
            return "number"
        case str():
            return "text"
        case _:
            return "json"


def _both(a: Kind, b: Kind) -> Kind:
    if a == b or b == "empty":
        return a
    if a == "empty":
        return b
    return "number" if {a, b} == {"integer", "number"} else "json"


def _rank(name: str) -> int:
    if name in ("id", "index"):
        return 0
    head, dot, _ = name.partition(".")
    if dot and head in _SPREAD:
        return 3 if head == "error" else 2
    return 2 if name in RECORD_NAMES else 1


def _as_kind(value: Any, kind: Kind) -> Any:
    """A cell as its column's type wants it; JSON is a text."""
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return float(value) if kind == "number" else value


def _write_csv(path: Path, records: Records) -> None:
    """Goes through the records twice: the columns must be known before the first row."""
    columns = columns_of(records())
    # Half a surrogate pair, which JSON may spell, has no UTF-8: it is written as its escape.
    with path.open(
        "w", encoding="utf-8", errors="backslashreplace", newline="", buffering=_BUFFER
    ) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for cells in map(cells_of, records()):
            writer.writerow([_csv_cell(cells.get(name), kind) for name, kind in columns.items()])


def _csv_cell(value: Any, kind: Kind) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if kind == "vector":
        kind = "json"
    # Beside other types in its column, a text stays readable as it is.
    return value if isinstance(value, str) else _as_kind(value, kind)


def _read_csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(min(_MOST_CELL, sys.maxsize))
    with path.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            yield int(record["index"]), {name: value or None for name, value in record.items()}


def _write_parquet(path: Path, records: Records) -> None:
    """Goes through the records twice, as for CSV."""
    arrow = _pyarrow()
    import pyarrow.parquet

    columns = columns_of(records())
    types = {
        "empty": arrow.null(),
        "boolean": arrow.bool_(),
        "integer": arrow.int64(),
        "number": arrow.float64(),
        "text": arrow.string(),
        "vector": arrow.list_(arrow.float32()),
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
                name: [_parquet_cell(cells.get(name), kind) for cells in group]
                for name, kind in columns.items()
            }
            writer.write_table(arrow.table(table, schema=schema))


def _parquet_cell(value: Any, kind: Kind) -> Any:
    value = _as_kind(value, kind)
    if isinstance(value, str):
        return value.encode("utf-8", errors="backslashreplace").decode("utf-8")
    return value


def _read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
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


CSV = OutputFormat("csv", flat_record, _write_csv, _read_csv, suffixes=(".csv",))
PARQUET = OutputFormat(
    "parquet",
    flat_record,
    _write_parquet,
    _read_parquet,
    suffixes=(".parquet", ".pq"),
    check=_pyarrow,
)


codecs.register_error(_AS_TEXT, _escapes)


# The output formats, and which of them a job has.


FORMATS = {format.name: format for format in (JSONL, OPENAI, CSV, PARQUET)}


def suffix_format(path: Path) -> OutputFormat:
    """What a file's name says of its format; JSON lines if nothing."""
    suffix = path.suffix.lower()
    return next((format for format in FORMATS.values() if suffix in format.suffixes), JSONL)


def output_format(wanted: str, out: Path | None, found: InputScan) -> OutputFormat:
    """``wanted`` unless it is auto, else what the name of ``out`` says, else what the rows are, all
    shards' together: OpenAI's batch lines are answered by such lines."""
    if wanted != "auto":
        return FORMATS[wanted]
    named = suffix_format(out) if out is not None else JSONL
    return OPENAI if named is JSONL and 2 * found.requests > found.input_rows else named
