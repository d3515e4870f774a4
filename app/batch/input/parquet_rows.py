"""Rows of a Parquet file, a few megabytes at a time."""

from __future__ import annotations

import datetime
import decimal
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.batch.input.row import Raw, Reader
from runtimes.errors import RequestError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_BATCH_BYTES = 16 * 2**20
_BATCH_ROWS = 1024


def _read(path: Path, name: str) -> Iterator[Raw]:
    """Rows from 1, their values as JSON has them; those before a damaged part come before its
    error."""
    pyarrow, file = _open(path, name)
    number = 0
    with file:
        try:
            # Statistics of the whole file tell how many rows make a few megabytes.
            batch = max(1, min(_BATCH_ROWS, _BATCH_BYTES // _row_bytes(file)))
            for records in file.iter_batches(batch_size=batch, use_threads=False):
                names = records.schema.names
                for cells in zip(*map(_cells, records.columns), strict=True):
                    number += 1
                    yield Raw(number, dict(zip(names, map(plain, cells), strict=True)))
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise RequestError(f"{name} is damaged after row {number}: {_reason(error)}") from error


def _cells(column: Any) -> list[Any]:
    """The values of a column. Times that Python cannot hold (nanoseconds, the year 20000) are
    Arrow's own text of them."""
    import pyarrow

    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        if not pyarrow.types.is_temporal(column.type):
            raise
        values = column.cast(pyarrow.string()).to_pylist()
    return values


def plain(value: Any) -> Any:
    """The nearest that JSON has to a value of Arrow's."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case decimal.Decimal():
            return str(value)
        case bytes():
            return value.decode("utf-8", errors="replace")
        case _:
            return str(value)


def _open(path: Path, name: str) -> tuple[Any, ParquetFile]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise RequestError(
            f"{name} is a Parquet file, which needs pyarrow: pip install 'ingot[parquet]'"
        ) from error
    try:
        file = parquet.ParquetFile(path, pre_buffer=False)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise RequestError(f"{name} is not a complete Parquet file: {_reason(error)}") from error
    for column, count in Counter(file.schema_arrow.names).items():
        if count > 1:
            file.close()
            raise RequestError(f"{name} has two columns called {column[:60]!r}; rename one of them")
    return pyarrow, file


def _row_bytes(file: ParquetFile) -> int:
    """Unpacked bytes of a row on average, at least 1."""
    facts = file.metadata
    total = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
    return max(1, int(total // max(1, facts.num_rows)))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


PARQUET = Reader(
    "parquet",
    _read,
    "write one row for each prompt",
    suffixes=(".parquet",),
    magic=b"PAR1",
    packed=False,
    place="row {line}",
)
