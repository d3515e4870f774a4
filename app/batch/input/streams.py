"""The bytes of an input file, unpacked while they are read where it is compressed."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

from app.openai.task import InputError
from runtimes.errors import RequestError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1
_ZSTD_SKIPPED = b"\x2a\x4d\x18"  # behind a byte from 0x50 to 0x5f (3.1.2); pzstd begins so


_Stream = BufferedReader | gzip.GzipFile | zstd.ZstdFile


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
            file = path.open("rb")
            try:
                head = file.read(4)
                file.seek(0)
                self._stream = self._unpacked(file, head)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise RequestError(f"{name} cannot be read: {error.strerror or error}") from error
        self._file = file

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

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._file.close()

    def __enter__(self) -> InputStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _unpacked(self, file: BufferedReader, head: bytes) -> _Stream:
        if head.startswith(_GZIP):
            self.packing = "gzip"
            return gzip.GzipFile(fileobj=file, mode="rb")
        if head == _ZSTD or (head[1:] == _ZSTD_SKIPPED and 0x50 <= head[0] <= 0x5F):
            self.packing = "zstd"
            return zstd.ZstdFile(file, "rb")
        return file
