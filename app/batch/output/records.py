"""Records of the output (a row with its answer) and the formats of OUT: JSON lines, OpenAI's batch
lines, CSV and Parquet."""

from __future__ import annotations

import codecs
import csv
import errno
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from app.batch.input.source import Row
from app.openai.answer import RECORD_NAMES, Answer
from app.openai.embeddings import embeddings_body
from app.openai.response import answer_body, error_body, status_of
from app.openai.validation import Problem
from runtimes.errors import OutOfMemoryError, RequestError
from runtimes.untrusted import Fields, JsonObject

if TYPE_CHECKING:
    import pyarrow


Record = Fields
# Called as often as the records are needed; each call begins anew.
Records = Callable[[], Iterable[Record]]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format of OUT."""

    name: str
    record: Callable[[Row, Answer, RecordForm], JsonObject]
    write: Callable[[Path, Records], None]  # raises OSError when the file cannot grow
    # What was written, each record with the index of its row, in the order of these.
    read: Callable[[Path], Iterator[tuple[int, JsonObject]]]
    suffixes: tuple[str, ...] = ()  # of OUT
    check: Callable[[], object] = dict  # raises RequestError when something is not installed
    # Where a record is a line, the index of the row that it is of; None for one that is not ours.
    index: Callable[[Record], int | None] | None = None


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How the rows of a job and their answers become records."""

    format: OutputFormat
    model: str  # what OpenAI's form calls it
    raw: bool = False  # prompts go in without a chat template
    fields: bool = True  # flat records have the fields of the input
    lasting: bool = False  # what another run of the job would not repeat is left out
    names: frozenset[str] = RECORD_NAMES  # that flat records keep for answers

    def record(self, row: Row, answer: Answer) -> JsonObject:
        """The record, ready for JSON. An error's message names the row's place in the input."""
        if self.lasting:
            answer = answer.lasting()
        if (problem := answer.error) is not None:
            located = Problem(problem.code, f"{row.where}: {problem.message}")
            answer = replace(answer, error=located)
        return self.format.record(row, answer, self)


def flat_record(row: Row, answer: Answer, form: RecordForm) -> JsonObject:
    """The row's id and index, the fields of the input, the answer.

    A field whose name the record needs for something else is called ``input_NAME``.
    """
    own = answer.to_json()
    own.pop("created", None)
    record: JsonObject = {"id": row.id, "index": row.index}
    if form.fields:
        taken = record.keys() | form.names | own.keys()
        for name, value in row.fields.items():
            if name in record and record[name] == value:
                continue  # the id that the record has already
            free = name
            while free in taken or free in record:
                free = f"input_{free}"
            record[free] = value
    record.update(own)
    return record


_BUFFER = 1 << 20
# Records as JSON lines, and as the lines of OpenAI's batch output files.
#
# Source of the latter: the request output object of OpenAI's Batch API reference.


_KEY_DIGITS = 24


def _write(path: Path, records: Records) -> None:
    with path.open("wb", buffering=_BUFFER) as file:
        file.writelines(map(dump_line, records()))


def _read(index_of: Callable[[Record], int | None], path: Path) -> Iterator[tuple[int, JsonObject]]:
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


def _openai_record(row: Row, answer: Answer, form: RecordForm) -> JsonObject:
    """An error has both forms that readers look for: ``error``, and a response whose status is not
    200 and whose body is an error object."""
    name = f"{row.key.hex()[:_KEY_DIGITS]}_{row.index}"
    problem, error = answer.error, None
    if problem is not None:
        error = {"code": problem.code, "message": problem.message}
        status = status_of(problem)
        body = error_body(status, problem)
    else:
        status, body = 200, _body(row, answer, form, name)
    return {
        "id": f"batch_req_{name}",
        "custom_id": str(row.id),
        "response": {"status_code": status, "request_id": f"req_{name}", "body": body},
        "error": error,
    }


def _body(row: Row, answer: Answer, form: RecordForm, name: str) -> JsonObject:
    if answer.embedding is not None:
        how = row.task.parts[0].embed
        vectors = answer.embeddings or [answer.embedding]
        tokens = (answer.usage or {}).get("prompt_tokens", 0)
        packed = how is not None and how.packed
        return embeddings_body(vectors, tokens, form.model, packed=packed)
    # The answer to a plain row is a text completion where no chat template was used.
    chat = row.endpoint == "chat" if row.endpoint else not form.raw
    adapter = row.task.adapter
    model = answer.answered_by or form.model
    model = model if adapter is None else f"{model}:{adapter.name}"
    return answer_body(answer, "chat" if chat else "completions", name, model)


def openai_index(record: Record) -> int | None:
    """The row's index, from the ``id`` of an output line; None for an id that is not ours."""
    head, _, index = str(record.get("id")).rpartition("_")
    good = head.startswith("batch_req_") and index.isascii() and index.isdigit()
    return int(index) if good else None


JSONL = OutputFormat("jsonl", flat_record, _write, partial(_read, _index), index=_index)
OPENAI = OutputFormat(
    "openai", _openai_record, _write, partial(_read, openai_index), index=openai_index
)


# JSON lines as bytes, and what is said when they cannot be written.


# Making an encoder takes longer than most lines.
_READABLE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


_ESCAPED = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def dump_line(value: Fields) -> bytes:
    """One JSON line in UTF-8 that any reader takes. Half a surrogate pair has no UTF-8, and many
    readers refuse its escape, with all lines after it: it becomes the text of that escape."""
    return _READABLE.encode(value).encode("utf-8", errors=_AS_TEXT) + b"\n"


def exact_line(value: JsonObject) -> bytes:
    """One JSON line that Python reads back as it was, half surrogate pairs too."""
    try:
        return _READABLE.encode(value).encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return _ESCAPED.encode(value).encode("ascii") + b"\n"


@contextmanager
def writing(path: Path, kept: str = "") -> Iterator[None]:
    """Raises OutOfMemoryError (also for a full disk) or RequestError where ``path`` cannot be
    written; ``kept`` says where the answers are."""
    try:
        yield
    except OSError as error:
        said = f"{path} cannot be written: {error.strerror or error}"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise RequestError(said) from error
        again = f". {kept}; make room and run the same command again" if kept else ""
        raise OutOfMemoryError(said + again) from error


def _escapes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    halves = error.object[error.start : error.end]
    return "".join(f"\\\\u{ord(half):04x}" for half in halves), error.end


_AS_TEXT = "ingot.escapes-as-text"
codecs.register_error(_AS_TEXT, _escapes)


# Records as rows of a CSV or Parquet table: columns, their types and cells.


Kind = Literal["empty", "boolean", "integer", "number", "text", "vector", "json"]
_KINDS: Mapping[type, Kind] = {  # of values that are not JSON
    NoneType: "empty",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
}
# Objects of the record that become a column for each of their values, such as usage.prompt_tokens.
_SPREAD = frozenset({"usage", "timings", "error"})
_VECTOR = "embedding"  # where Parquet has lists of float32
_INT64 = 2**63
_MOST_CELL = 1 << 28
_GROUP_ROWS = 2048  # of a Parquet file, held in memory
_JSON = {b"ingot": b"json"}  # of a Parquet column whose texts are JSON


def cells_of(record: Fields) -> JsonObject:
    """The record without nesting. Lists and objects of the input stay what they are."""
    cells: JsonObject = {}
    for name, value in record.items():
        if name in _SPREAD and isinstance(value, Mapping):
            cells.update({f"{name}.{part}": inner for part, inner in value.items()})
        else:
            cells[name] = value
    return cells


def columns_of(records: Iterable[Fields]) -> dict[str, Kind]:
    """Every column of the records with the type that holds all of its cells: whole numbers beside
    others are numbers, cells of types that differ are JSON. The columns of the answer stand behind
    those of the input, errors last, whichever came first."""
    columns: dict[str, Kind] = {}
    for record in records:
        for name, value in cells_of(record).items():
            kind = _KINDS.get(type(value), "json")
            if kind == "integer" and not -_INT64 <= value < _INT64:
                kind = "json"
            elif name == _VECTOR and isinstance(value, list) and {*map(type, value)} == {float}:
                kind = "vector"
            columns[name] = _both(columns.get(name, "empty"), kind)
    return {name: columns[name] for name in sorted(columns, key=_rank)}


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


def _read_csv(path: Path) -> Iterator[tuple[int, JsonObject]]:
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


def _read_parquet(path: Path) -> Iterator[tuple[int, JsonObject]]:
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


FORMATS = {format.name: format for format in (JSONL, OPENAI, CSV, PARQUET)}


def suffix_format(path: Path) -> OutputFormat:
    """Return the format of a file's suffix; JSON lines for any other."""
    suffix = path.suffix.lower()
    return next((format for format in FORMATS.values() if suffix in format.suffixes), JSONL)


def output_format(wanted: str, out: Path | None, requests: int, rows: int) -> OutputFormat:
    """Return ``wanted`` unless it is auto, else the format of ``out``'s suffix; where that is JSON
    lines and most ``rows`` are ``requests`` of an OpenAI batch, OpenAI's batch lines."""
    if wanted != "auto":
        return FORMATS[wanted]
    named = suffix_format(out) if out is not None else JSONL
    return OPENAI if named is JSONL and 2 * requests > rows else named
