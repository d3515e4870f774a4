"""An input file: unpacked while it is read where it is compressed, and its lines with their
numbers."""

from __future__ import annotations

import gzip
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from app.openai.validation import InputError, Problem
from runtimes.errors import RequestError

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


@dataclass(frozen=True, slots=True)
class Raw:
    """What a reader found."""

    line: int  # from 1: lines of a text file, rows of a Parquet file, files of a folder
    fields: Mapping[str, Any] = field(default_factory=dict)  # what was read, as JSON has it
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """A format. ``read`` takes a path and what messages call it, and gives every row in order. What
    is wrong with one row is that row's problem; it raises RequestError when the input as a whole
    cannot be read."""

    name: str
    read: Callable[[Path, str], Iterator[Raw]]
    hint: str  # what to do about an input without rows
    suffixes: tuple[str, ...] = ()  # of names of such files
    magic: bytes | None = None  # how each such file begins, whatever its name is
    first: bytes | None = None  # the first character, where nothing else says what a file is
    packed: bool = True  # whether it may be packed with gzip or zstd
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


def rows_by_line(path: Path, name: str, parse: Callable[[str], Mapping[str, Any]]) -> Iterator[Raw]:
    """A row for each line that is not blank, its fields by ``parse``."""
    with InputStream(path, name) as stream:
        for number, line in numbered_lines(stream):
            if isinstance(line, Problem):
                yield Raw(number, problem=line)
            elif line.strip(_BLANK):
                try:
                    yield Raw(number, parse(line.rstrip("\r\n")))
                except InputError as error:
                    yield Raw(number, problem=error.problem)


def numbered_lines(stream: InputStream) -> Iterator[tuple[int, str | Problem]]:
    """Lines from 1 with their ends; a problem for one that is too long, that is no text, or that is
    damaged: that is the last."""
    for number in itertools.count(1):
        try:
            raw = stream.readline(MAX_LINE + 1)
            whole = len(raw) <= MAX_LINE or raw.endswith(b"\n")
            while not whole and raw and not raw.endswith(b"\n"):
                raw = stream.readline(MAX_LINE)
        except InputError as error:
            yield number, error.problem
            return
        if whole and not raw:
            return
        try:
            if not whole:
                raise too_long("line")
            yield number, decode(raw.removeprefix(UTF8_BOM) if number == 1 else raw)
        except InputError as error:
            yield number, error.problem


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
