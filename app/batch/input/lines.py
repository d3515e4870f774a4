"""An input file: unpacked while it is read where it is compressed, and its lines with their
numbers."""

from __future__ import annotations

import gzip
import itertools
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from app.openai.validation import InputError, Problem
from runtimes.errors import RequestError
from runtimes.untrusted import Fields

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

UTF8_BOM = b"\xef\xbb\xbf"
# A line is held in memory whole; one that is longer than any context must not exhaust it.
MAX_LINE = 64 * 2**20
_BLANK = " \t\r\n\f\v"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1
_ZSTD_SKIPPED = b"\x2a\x4d\x18"  # behind a byte from 0x50 to 0x5f (3.1.2); pzstd begins so


# Line of a row as in ``Raw``, and its offset.
Place = tuple[int, int]
# Number, offset and text of a line, or why it has none.
NumberedLine = tuple[int, int, str | Problem]


@dataclass(frozen=True, slots=True)
class Raw:
    """A row as a reader found it."""

    line: int  # from 1: lines of a text file, rows of a Parquet file, files of a folder
    fields: Fields = field(default_factory=dict)  # what was read, as JSON has it
    problem: Problem | None = None
    offset: int = 0  # bytes before ``line``, unpacked; 0 where a row is no line


class Places:
    """Places of rows, in ascending order, and the rows' indexes: 16 bytes a row."""

    def __init__(self) -> None:
        self.indexes, self.lines, self.offsets = array("I"), array("I"), array("q")

    def add(self, index: int, line: int, offset: int) -> None:
        """Note the next row."""
        self.indexes.append(index)
        self.lines.append(line)
        self.offsets.append(offset)

    def among(self, indexes: Set[int]) -> Places:
        """Choose the places of the rows of these indexes."""
        chosen = Places()
        for place in zip(self.indexes, self.lines, self.offsets, strict=True):
            if place[0] in indexes:
                chosen.add(*place)
        return chosen

    def __iter__(self) -> Iterator[Place]:
        return zip(self.lines, self.offsets, strict=True)


@dataclass(frozen=True, slots=True)
class Reader:
    """An input format."""

    name: str
    # Every row of a path, which messages call by a name; or, without parsing the others, only the
    # rows at places. An invalid row has a problem. Raises RequestError when the input as a whole
    # cannot be read.
    read: Callable[[Path, str, Places | None], Iterator[Raw]]
    hint: str  # what to do about an input without rows
    suffixes: tuple[str, ...] = ()  # of names of such files
    place: str = "line {line}"  # what messages call a row's place; {id} is the row's id as JSON
    # Of a folder: path, size and time of each file, which tell whether it changed.
    listing: Callable[[Path, str], Iterator[tuple[str, int, int]]] | None = None


class InputStream:
    """An open file. Whether it is packed is detected from its first bytes: a name may mislead.

    However much a compressed file unpacks to, only a piece is held: memory is bounded by the
    longest line that is asked for and the format's window (zstd: at most 128 MiB).
    """

    def __init__(self, path: Path, name: str) -> None:
        """Open ``path``, which messages call ``name``. Raises RequestError if that fails."""
        self.name = name
        self.packing = ""
        try:
            self._file = path.open("rb")
            head = self._file.read(4)
            self._file.seek(0)
        except OSError as error:
            raise RequestError(f"{name} cannot be read: {error.strerror or error}") from error
        self._stream: BufferedReader | gzip.GzipFile | zstd.ZstdFile = self._file
        if head.startswith(_GZIP):
            self.packing, self._stream = "gzip", gzip.GzipFile(fileobj=self._file, mode="rb")
        elif head == _ZSTD or (head[1:] == _ZSTD_SKIPPED and 0x50 <= head[0] <= 0x5F):
            self.packing, self._stream = "zstd", zstd.ZstdFile(self._file, "rb")

    def start(self) -> bytes:
        """The first few bytes at least, which stay to be read. Raises as ``readline`` does."""
        return self._checked(self._stream.peek, 4096)

    def read(self, count: int) -> bytes:
        """At most ``count`` bytes; fewer only at the end. Raises as ``readline`` does."""
        return self._checked(self._stream.read, count)

    def seek(self, offset: int) -> None:
        """Go to ``offset`` of a file that is not packed."""
        self._file.seek(offset)

    def readline(self, limit: int) -> bytes:
        """The next line with its end, cut off at ``limit`` bytes.

        Raises InputError when compressed data is damaged or ends too early: nothing more can be
        read then. Raises RequestError when the file itself cannot be read.
        """
        return self._checked(self._stream.readline, limit)

    def _checked(self, read: Callable[[int], bytes], count: int) -> bytes:
        try:
            return read(count)
        except (OSError, EOFError, zlib.error, zstd.ZstdError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                said = f"{self.name} cannot be read: {error.strerror or error}"
                raise RequestError(said) from error
            raise InputError(
                "damaged_input",
                f"the {self.packing} data is damaged or ends too early here "
                f"({str(error)[:100]}); whatever follows is lost",
            ) from error

    def __enter__(self) -> InputStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._file.close()


def rows_by_line(
    path: Path,
    name: str,
    places: Places | None,
    *,
    parse: Callable[[str], Fields],
) -> Iterator[Raw]:
    """A row for each line that is not blank, or that is at one of ``places``; its fields by
    ``parse``."""
    with InputStream(path, name) as stream:
        lines = NumberedLines(stream)
        for number, offset, line in lines if places is None else lines.at(places):
            if isinstance(line, Problem):
                yield Raw(number, problem=line)
            elif line.strip(_BLANK):
                try:
                    yield Raw(number, parse(line.rstrip("\r\n")), offset=offset)
                except InputError as error:
                    yield Raw(number, problem=error.problem)


@dataclass(slots=True)
class NumberedLines:
    """Lines from 1 with their ends, as (number, offset, text); a problem in place of the text for
    one that is too long, that is no text, or that is damaged: that is the last."""

    stream: InputStream
    number: int = 0  # of lines that were read, as are the bytes before ``offset``
    offset: int = 0
    ended: bool = False

    def __iter__(self) -> Iterator[NumberedLine]:
        return self

    def __next__(self) -> NumberedLine:
        if self.ended:
            raise StopIteration
        offset = self.offset
        self.number = number = self.number + 1
        try:
            raw = self._readline(MAX_LINE + 1)
            whole = len(raw) <= MAX_LINE or raw.endswith(b"\n")
            while not whole and raw and not raw.endswith(b"\n"):
                raw = self._readline(MAX_LINE)
        except InputError as error:
            self.ended = True
            return number, offset, error.problem
        if whole and not raw:
            self.ended = True
            raise StopIteration
        try:
            if not whole:
                raise too_long("line")
            return number, offset, decode(raw.removeprefix(UTF8_BOM) if number == 1 else raw)
        except InputError as error:
            return number, offset, error.problem

    def at(self, places: Iterable[Place]) -> Iterator[NumberedLine]:
        """Lines at ``places``, in ascending order."""
        for place in places:
            self.go_to(place)
            yield from itertools.islice(self, 1)

    def go_to(self, place: Place) -> None:
        """Make the line at ``place`` the next one. A packed file has to be unpacked up to there."""
        line, offset = place
        if not self.stream.packing:
            self.stream.seek(offset)
            self.number, self.offset = line - 1, offset
        while self.number < line - 1 and next(self, None) is not None:
            pass

    def _readline(self, limit: int) -> bytes:
        raw = self.stream.readline(limit)
        self.offset += len(raw)
        return raw


def too_long(what: str) -> InputError:
    """The error of a line or file above ``MAX_LINE``."""
    return InputError("line_too_long", f"the {what} is longer than {MAX_LINE / 2**20:.0f} MiB")


def decode(raw: bytes, what: str = "line") -> str:
    """Text of a whole line or file. Raises InputError."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            "invalid_utf8", f"byte {error.start + 1} of the {what} is not valid UTF-8"
        ) from error
