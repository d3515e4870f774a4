"""Records as JSON lines."""

import json
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.batch.output.records import OutputFormat, Record, Records, flat_record
from app.batch.output.wire import dump_line
from runtimes.errors import RequestError

_BUFFER = 1 << 20


def write_lines(path: Path, records: Records) -> None:
    """A line for each record."""
    with path.open("wb", buffering=_BUFFER) as file:
        for record in records():
            file.write(dump_line(record))


def read_lines(
    path: Path, index_of: Callable[[Record], int | None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records in the order of their rows. Lines may be in the order in which rows finished:
    they are found by their offsets."""
    indexes, offsets = array("q"), array("q")
    with path.open("rb", buffering=_BUFFER) as file:
        offset = 0
        for line in file:
            record = json.loads(line)
            index = index_of(record) if isinstance(record, dict) else None
            if not isinstance(index, int):
                raise RequestError(f"{path} has a line without the index of its row")
            indexes.append(index)
            offsets.append(offset)
            offset += len(line)
        for at in sorted(range(len(indexes)), key=indexes.__getitem__):
            file.seek(offsets[at])
            yield indexes[at], json.loads(file.readline())


def _index(record: Record) -> int | None:
    return record.get("index")


JSONL = OutputFormat(
    "jsonl", flat_record, write_lines, lambda path: read_lines(path, _index), index=_index
)
