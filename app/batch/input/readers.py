"""The input formats, and which of them a file has: by its name where that says so, else by how it
begins."""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import math
import os
import stat
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.batch.input.lines import (
    MAX_LINE,
    UTF8_BOM,
    InputStream,
    NumberedLine,
    NumberedLines,
    Places,
    Raw,
    Reader,
    decode,
    rows_by_line,
    too_long,
)
from app.documents import DocumentError, Documents, document_kind
from app.here import reason
from app.openai.validation import InputError, Problem, kind
from runtimes.errors import RequestError
from runtimes.untrusted import JsonObject

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile


# Rows of a Parquet file, a few megabytes at a time.


_BATCH_BYTES = 16 * 2**20
_BATCH_ROWS = 1024


def _read_parquet(path: Path, name: str, places: Places | None) -> Iterator[Raw]:
    """Rows from 1, their values as JSON has them; those before a damaged part come before its
    error. Only rows at ``places`` become Python's values."""
    pyarrow, file = _open(path, name)
    number, begin, at = 0, 1, 0
    chosen: Sequence[int]
    with file:
        _require_distinct(file.schema_arrow.names, name)
        try:
            # Statistics of the whole file tell how many rows make a few megabytes.
            batch = max(1, min(_BATCH_ROWS, _BATCH_BYTES // _row_bytes(file)))
            for records in file.iter_batches(batch_size=batch, use_threads=False):
                first, begin = begin, begin + records.num_rows
                chosen = range(first, begin)
                if places is not None:
                    upto = bisect_left(places.lines, begin, at)
                    chosen, at = places.lines[at:upto], upto
                    if not chosen:
                        continue
                    records = records.take([row - first for row in chosen])
                names = records.schema.names
                rows = zip(*map(_cells, records.columns), strict=True)
                for number, cells in zip(chosen, rows, strict=False):
                    yield Raw(number, dict(zip(names, map(plain, cells), strict=True)))
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise RequestError(f"{name} is damaged after row {number}: {_reason(error)}") from error


def _require_distinct(columns: Iterable[str], name: str) -> None:
    for column, count in Counter(columns).items():
        if count > 1:
            raise RequestError(f"{name} has two columns called {column[:60]!r}; rename one of them")


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
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
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
        return pyarrow, parquet.ParquetFile(path, pre_buffer=False)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise RequestError(f"{name} is not a complete Parquet file: {_reason(error)}") from error


def _row_bytes(file: ParquetFile) -> int:
    """Unpacked bytes of a row on average, at least 1."""
    facts = file.metadata
    total = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
    return max(1, int(total // max(1, facts.num_rows)))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


PARQUET = Reader(
    "parquet",
    _read_parquet,
    "write one row for each prompt",
    suffixes=(".parquet",),
    place="row {line}",
)


# Rows of a CSV file (RFC 4180) with a header: each cell a text under its column's name.


_DELIMITERS = ",;\t"  # whichever the header has most of


def _read_csv(path: Path, name: str, places: Places | None) -> Iterator[Raw]:
    """Rows below the header, numbered by the line where they begin. A row that is no CSV ends with
    its first line: a quote that is never closed costs one row."""
    csv.field_size_limit(MAX_LINE)
    again = deque[NumberedLine]()  # what was behind a line with such a quote
    row: list[NumberedLine] = []  # the lines of the present one

    def texts() -> Iterator[str]:
        while line := again.popleft() if again else next(lines, None):
            row.append(line)
            if isinstance(line[2], Problem):
                raise InputError(line[2].code, line[2].message)
            yield line[2]

    with InputStream(path, name) as stream:
        lines = NumberedLines(stream)
        try:
            head = next(texts(), None)
            if head is None:
                return
            delimiter = max(_DELIMITERS, key=head.count)
            header = _header(next(csv.reader([head], delimiter=delimiter, strict=True)), name)
        except (InputError, csv.Error, StopIteration) as error:
            raise RequestError(f"{name}: its first line does not name columns: {error}") from error
        for place in itertools.repeat(None) if places is None else places:
            if place is not None:
                again.clear()
                lines.go_to(place)
            row.clear()
            try:
                # A reader for each: the lines of the one before may have ended in an exception.
                cells = next(csv.reader(texts(), delimiter=delimiter, strict=True), None)
            except (InputError, csv.Error) as error:
                again.extendleft(reversed(row[1:]))
                wrong = Problem("invalid_csv", f"not CSV: {error}")
                if row[1:] or "unexpected end" in str(error):
                    said = f"a quote is not closed rightly (looked up to line {row[-1][0]})"
                    wrong = Problem("invalid_csv", said)
                elif isinstance(error, InputError):
                    wrong = error.problem
                yield Raw(row[0][0], problem=wrong)
                continue
            if cells is None:
                return
            if any(cells):  # else a blank line, or one of delimiters alone
                said = f"the row has {len(cells)} cells; the header has {len(header)}"
                uneven = Problem("invalid_csv", said) if len(cells) != len(header) else None
                fields = {key: cell for key, cell in zip(header, cells, strict=False) if key}
                line, offset, _ = row[0]
                yield Raw(line, fields, uneven, offset)


def _header(names: list[str], name: str) -> list[str]:
    """Column names; columns without one are left out of the rows."""
    header = [text.strip() for text in names]
    _require_distinct(filter(None, header), name)
    if not any(header):
        raise RequestError(f"{name}: its first line must name the columns; it is blank")
    return header


CSV = Reader(
    "csv",
    _read_csv,
    "below the line that names the columns, write a line for each prompt",
    suffixes=(".csv", ".tsv"),
)


def _read_folder(folder: Path, name: str, places: Places | None) -> Iterator[Raw]:
    """A row for each file that is not hidden, at any depth, in the order of the paths' parts."""
    root = folder.resolve()
    wanted = itertools.count(1) if places is None else iter(places.lines)
    following = next(wanted, None)
    with Documents() as documents:
        for number, path in enumerate(_files(root, name), 1):
            if number != following:
                continue
            following = next(wanted, None)
            fields = {"id": path.relative_to(root).as_posix(), "name": path.name}
            problem = None
            try:
                fields["prompt"] = _text(path, root, documents)
            except InputError as error:
                problem = error.problem
            except DocumentError as error:
                problem = Problem("unreadable_file", str(error))
            except OSError as error:
                problem = Problem("unreadable_file", f"it cannot be read: {reason(error)}")
            yield Raw(number, fields, problem)


# The files of a folder, one row each, its path below the folder as its id.


def _listing(folder: Path, name: str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time (ns) of each file, to tell whether anything changed."""
    for path in _files(folder, name):
        try:
            status = path.stat()
        except OSError:  # a broken link
            yield str(path), -1, 0
        else:
            yield str(path), status.st_size, status.st_mtime_ns


def _files(folder: Path, name: str) -> Iterator[Path]:
    """Files and links, depth first; the names of one folder at each depth are held, which may be
    any number of folders deep."""
    open_ = [iter(_entries(folder, name))]
    while open_:
        entry = next(open_[-1], None)
        if entry is None:
            open_.pop()
        elif not entry.name.startswith("."):
            if entry.is_dir(follow_symlinks=False):
                open_.append(iter(_entries(Path(entry.path), name)))
            else:
                yield Path(entry.path)


def _entries(folder: Path, name: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise RequestError(f"{name}: {folder} cannot be listed: {error.strerror}") from error


def _text(path: Path, root: Path, documents: Documents) -> str:
    """The file's text, unpacked where it is compressed. Raises InputError, OSError or
    DocumentError; RequestError where a package is missing."""
    if path.is_symlink():
        try:
            target = path.resolve(strict=True)
        except RuntimeError as error:  # how Python 3.11 tells of links in a ring
            raise InputError("refused_link", "it is a link that leads nowhere") from error
        if not target.is_relative_to(root):
            raise InputError("refused_link", "it is a link that leads out of the folder")
        if target.is_dir():
            raise InputError("refused_link", "it is a link to a folder, which is not followed")
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError("unreadable_file", "it is not a regular file")
    with InputStream(path, str(path)) as stream:
        if found := document_kind(path.name, stream.start()):
            if stream.packing:
                said = f"it is a document packed with {stream.packing}: unpack it first"
                raise InputError("unreadable_file", said)
            return documents.text(path, found)[0]
        data = stream.read(MAX_LINE + 1)
    if len(data) > MAX_LINE:
        raise too_long("file")
    return decode(data.removeprefix(UTF8_BOM), "file")


FOLDER = Reader(
    "folder",
    _read_folder,
    "put a text file, PDF or .docx for each prompt into it",
    place="file {id}",
    listing=_listing,
)


def _object(text: str) -> JsonObject:
    """The object in a line. Raises InputError for anything else."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InputError(
            "invalid_json", f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
        ) from error
    except RecursionError as error:
        raise InputError("invalid_json", "not usable JSON: nested too deeply") from error
    except ValueError as error:  # a constant that JSON lacks, a number of thousands of digits
        raise InputError("invalid_json", f"not JSON: {str(error)[:100]}") from error
    if not isinstance(value, dict):
        raise InputError("wrong_type", f"a row must be an object, not {kind(value)}")
    return value


# Rows of JSON lines: an object each.


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)

JSONL = Reader(
    "jsonl",
    partial(rows_by_line, parse=_object),
    'write one object a line, such as {"prompt": "What is 2 + 2?"}',
    suffixes=(".jsonl", ".ndjson", ".json"),
)


# Rows of plain text: a line is a prompt.


TEXT = Reader(
    "text",
    partial(rows_by_line, parse=lambda line: {"prompt": line}),
    "write one prompt a line",
    suffixes=(".txt", ".text", ".md"),
)


READERS = {reader.name: reader for reader in (JSONL, TEXT, CSV, PARQUET, FOLDER)}

_PACKED = frozenset({".gz", ".zst", ".zstd"})
_PARQUET = b"PAR1"  # how each such file begins, whatever its name is
_ONE_A_LINE = "JSONL has one object per line (jq -c '.[]' converts it)"
_UTF16 = "UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"
# What is not read, so that its bytes are not taken for text.
_FOREIGN = (
    (b"\xff\xfe", _UTF16),
    (b"\xfe\xff", _UTF16),
    (
        b"PK\x03\x04",
        "a ZIP archive; unpack it. Of a spreadsheet export CSV; a .docx is read in a folder",
    ),
    (b"BZh91AY&SY", "packed with bzip2; unpack it (bunzip2), or pack it with gzip or zstd"),
    (b"\xfd7zXZ\x00", "packed with xz; unpack it (unxz), or pack it with gzip or zstd"),
    (b"ARROW1\0\0", "an Arrow file; write it as Parquet"),
    (b"GGUF\x03\0\0\0", "a GGUF model; name the file of prompts first and the model with --model"),
    (b"%PDF-", "a PDF; name the folder that it is in, whose files are a prompt each"),
)


def detect(path: Path, name: str, asked: str) -> Reader:
    """The format of ``path``, as the user ``asked`` or as it looks.

    Raises RequestError when there is nothing there that could be read.
    """
    if not name:
        raise RequestError("the input's name is empty")
    if not path.exists():
        raise RequestError(f"{name}: no such file")
    if path.is_dir():
        if asked not in ("auto", "folder", "text"):
            raise RequestError(f"{name} is a folder, whose files are a prompt each; name a file")
        return FOLDER
    if asked == "folder":
        raise RequestError(f"{name} is a file; --input-format folder is for folders")
    if not path.is_file():
        # It is read more than once, which a pipe or a device does not allow.
        raise RequestError(f"{name} is not a regular file; pipe it in and name the input -")
    with InputStream(path, name) as stream:
        try:
            head = stream.start()
        except InputError as error:
            raise RequestError(f"{name} cannot be unpacked: {error}") from error
    called = Path(name)
    suffix = (called.with_suffix("") if called.suffix.lower() in _PACKED else called).suffix.lower()
    start = head.removeprefix(UTF8_BOM).lstrip()[:1]
    named = next((one for one in READERS.values() if suffix in one.suffixes), None)
    by_look = PARQUET if head.startswith(_PARQUET) else named
    found = READERS.get(asked, by_look)  # auto is none of them
    if found is PARQUET:
        if stream.packing:
            raise RequestError(f"{name} is Parquet inside {stream.packing}; unpack it first")
    elif asked == "auto":
        for magic, what in _FOREIGN:
            if head.startswith(magic):
                raise RequestError(f"{name} is {what}")
        if suffix == ".json" and start == b"[":
            raise RequestError(f"{name} holds one JSON list; {_ONE_A_LINE}")
    return found or (JSONL if start == b"{" else TEXT)
