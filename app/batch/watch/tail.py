"""The whole lines of a file that another process is writing."""

from __future__ import annotations

import os
from pathlib import Path


class Tail:
    """Reads on from where it stopped; a file that shrank is read from its beginning."""

    def __init__(self, path: Path, *, last: int | None = None) -> None:
        """``last``: of a longer file, only about so many bytes at its end."""
        self.path = path
        self.offset = 0
        self.size = 0
        self._last = last

    @property
    def behind(self) -> int:
        """Bytes that were not read at the last look."""
        return self.size - self.offset

    def read(self, most: int = 1 << 18) -> tuple[bool, list[tuple[int, bytes]]]:
        """Whether the file began anew, and the next whole lines with their offsets: about ``most``
        bytes, but at least one line if one is whole."""
        try:
            with self.path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                file.seek(max(0, self.offset - 1))
                # One that shrank and has grown again since does not go on after a newline.
                anew = self.size < self.offset or (self.offset > 0 and file.read(1) != b"\n")
                if anew:
                    self.offset = 0
                file.seek(self.offset)
                if self._last is not None and self.size - self.offset > self._last:
                    file.seek(self.size - self._last)
                    file.readline()
                    self.offset = file.tell()
                self._last = None
                data = file.read(most)
                end = data.rfind(b"\n")
                if end < 0 and len(data) == most:
                    data += file.readline()
                    end = len(data) - 1 if data.endswith(b"\n") else -1
        except OSError:
            self.size = 0
            anew, self.offset = self.offset > 0, 0
            return anew, []
        lines = []
        for line in data[: end + 1].split(b"\n")[:-1] if end >= 0 else []:
            lines.append((self.offset, line + b"\n"))
            self.offset += len(line) + 1
        return anew, lines
