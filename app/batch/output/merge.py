"""`ingot batch merge OUT PART...`: the outputs of all shards of a job as one, in input order.

The journal beside each part tells which shard of which job it is, so that no part can be missing,
doubled or of another job without being named.
"""

from __future__ import annotations

import csv
import heapq
import json
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.input.shard import Shard
from app.batch.journal.journal import journal_path
from app.batch.journal.lines import told
from app.batch.journal.state import read_state
from app.batch.output.formats import OutputFormat, RecordForm, suffix_format
from app.batch.output.openai import index_of
from app.batch.output.publish import output_error, write_output
from app.batch.output.writers import json_columns
from app.batch.settings import comparable
from runtimes.errors import RequestError

_CSV_CELL = 1 << 28


@dataclass(frozen=True, slots=True)
class Part:
    """The output of one shard; ``job`` is what all parts of a job have in common."""

    path: Path
    shard: Shard
    format: OutputFormat
    rows: int
    job: str


@dataclass(frozen=True, slots=True)
class Merged:
    """``rows`` of so many ``parts`` were written, ``failed`` of them errors."""

    rows: int
    failed: int
    parts: int


def merge(out: Path, paths: Sequence[Path], *, replace: bool = False) -> Merged:
    """Write ``out`` from all parts of a job; over an older file only with ``replace``.

    Raises RequestError naming the parts that are missing, doubled, unfinished or of another job,
    and OutOfMemoryError for a full disk.
    """
    # `part*.jsonl` names the journals too.
    journals = {journal_path(path) for path in paths}
    parts = [_part(path) for path in paths if path not in journals]
    _check(out, parts)
    if out.exists() and not replace:
        raise RequestError(f"{out} exists; --fresh replaces it")
    form = RecordForm(parts[0].format, "")
    counts: Counter[str] = Counter()

    def records() -> Iterator[dict[str, Any]]:
        counts.clear()
        streams = (_records(part) for part in parts)
        for index, record in heapq.merge(*streams, key=lambda pair: pair[0]):
            if index != counts["rows"]:
                raise RequestError(f"the row of index {counts['rows']} is in no part")
            counts["rows"] += 1
            counts["failed"] += bool(record.get("error") or record.get("error.code"))
            yield record

    try:
        write_output(out, form, records)
    except OSError as error:
        raise output_error(error, out, "The parts are untouched") from error
    return Merged(counts["rows"], counts["failed"], len(parts))


def _part(path: Path) -> Part:
    if not path.is_file():
        raise RequestError(f"{path}: no such file")
    journal = journal_path(path)
    if not journal.is_file():
        raise RequestError(
            f"{path} has no {journal.name} beside it, which tells what part it is: copy both"
        )
    log = read_state(journal)
    run = log.run
    if log.damaged and (run is None or log.end is None or log.settings_lost):
        what = "; ".join(told(journal, log.damaged, "run the command of this part again"))
        raise RequestError(f"nothing tells what part {path} is: {what}")
    if run is None or run.get("shard") is None:
        raise RequestError(f"{path} was not made with --shard")
    if log.end is None or log.end["unfinished"]:
        raise RequestError(f"{path} (part {run['shard']}) is not finished; run its command again")
    shard = Shard.parse(run["shard"])
    job = [comparable(log.settings or {}), shard.count, run["input_rows"], run["format"]]
    return Part(path, shard, run["format"], run["rows"], json.dumps(job, sort_keys=True))


def _check(out: Path, parts: Sequence[Part]) -> None:
    first = parts[0]
    for part in parts:
        if part.job != first.job:
            raise RequestError(
                f"{part.path} and {first.path} are not of one job: model, sampling, input, number "
                "of parts or format differ"
            )
        if out.exists() and out.samefile(part.path):
            raise RequestError(f"{out} is one of the parts; name another file")
    named = suffix_format(out)
    if named != first.format and not (named == "jsonl" and first.format == "openai"):
        raise RequestError(f"the parts are {first.format}; give {out} a name that says so")
    found: dict[int, Path] = {}
    for part in parts:
        if part.shard.number in found:
            raise RequestError(
                f"{part.path} and {found[part.shard.number]} are both part {part.shard}"
            )
        found[part.shard.number] = part.path
    count = first.shard.count
    missing = [f"{number}/{count}" for number in range(1, count + 1) if number not in found]
    if missing:
        raise RequestError(f"parts are missing: {', '.join(missing)}")


def _records(part: Part) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each record with the index of its row, in order. Raises RequestError."""
    try:
        match part.format:
            case "csv":
                yield from _csv_records(part.path)
            case "parquet":
                yield from _parquet_records(part.path)
            case _:
                yield from _json_records(part.path, part.format)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise RequestError(
            f"{part.path} is damaged ({error}); remove it and run the command of this part again, "
            "which writes it again from its journal"
        ) from error


def _json_records(path: Path, format: OutputFormat) -> Iterator[tuple[int, dict[str, Any]]]:
    """JSON lines may be in the order in which rows finished: they are found by their offsets."""
    indexes, offsets = array("q"), array("q")
    with path.open("rb", buffering=1 << 20) as file:
        offset = 0
        for line in file:
            indexes.append(_index(path, json.loads(line), format))
            offsets.append(offset)
            offset += len(line)
    order = sorted(range(len(indexes)), key=indexes.__getitem__)
    with path.open("rb") as file:
        for at in order:
            file.seek(offsets[at])
            yield indexes[at], json.loads(file.readline())


def _index(path: Path, record: Any, format: OutputFormat) -> int:
    if not isinstance(record, dict):
        record = {}
    index = index_of(str(record.get("id"))) if format == "openai" else record.get("index")
    if not isinstance(index, int):
        raise RequestError(f"{path} has a line without the index of its row")
    return index


def _csv_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(min(_CSV_CELL, sys.maxsize))
    with path.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            yield int(record["index"]), {name: value or None for name, value in record.items()}


def _parquet_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        texts = json_columns(file.schema_arrow)
        for batch in file.iter_batches(1024):
            for record in batch.to_pylist():
                values = {name: json.loads(record[name]) for name in texts if record[name]}
                yield record["index"], record | values
