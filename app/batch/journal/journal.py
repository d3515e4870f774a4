"""The append-only journal beside the output: every finished row, safe from a crash at once, and
from a power cut from the moment it is synced.

What a crash tore off at the end, and what was damaged later, is left out, told, and stays where it
is (see ``lines``). Rows are found again by their key, so that an edited input never misaligns with
old answers.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import IO

import numpy as np

from app.batch.journal.lines import (
    DAMAGE,
    HEADER,
    NOT_OURS,
    VERSION,
    VERSIONS,
    JournalState,
    lines_of,
    sealed_line,
)
from app.batch.output.records import writing
from app.batch.report.eta import LengthCounts
from app.openai.answer import Answer
from runtimes.errors import IngotError, RequestError
from runtimes.untrusted import JsonObject

JOURNAL = ".journal.jsonl"  # behind the name of the output
_NOT_OURS = NOT_OURS + "; move it out of the way"
_MAGIC = b'{"ingot":"batch-journal"'
# A group is synced when it is this large or this old: a power cut costs at most so much work,
# and a fast job does not wait for the disk at every row.
_GROUP_ROWS = 64
GROUP_SECONDS = 1.0
_KEPT = "Every row written so far is kept"


class Entries:
    """Places of the rows' records: parallel arrays, 25 bytes a row, so that millions fit."""

    def __init__(self) -> None:
        self.keys, self.indexes, self.offsets = array("Q"), array("q"), array("q")
        self.answered = array("b")
        self.keep_failures = False  # a row's failure stands as its result: it is not tried again

    def add(self, key: bytes, index: int, offset: int, answered: bool) -> None:
        """Note one record."""
        self.keys.append(short_key(key))
        self.indexes.append(index)
        self.offsets.append(offset)
        self.answered.append(answered)

    def __len__(self) -> int:
        return len(self.keys)


def short_key(key: bytes) -> int:
    """The part of a key that the index holds; records carry the whole."""
    return int.from_bytes(key[:8], "big")


def journal_path(out: Path) -> Path:
    """Path of an output file's journal: beside the file, also for a link to it, so that two
    jobs on one file have one journal."""
    if os.path.islink(out):  # also a name that no file can have: Path.is_symlink raises for it
        out = Path(os.path.realpath(out))
    return out.with_name(out.name + JOURNAL)


class Journal(JournalState):
    """An open journal, locked against other jobs, with the place of every record."""

    def __init__(self, path: Path) -> None:
        """Open or create ``path`` and index what is there; nothing is changed before ``begin``.

        Raises RequestError when another job holds it or the file is not a journal,
        OutOfMemoryError when the disk is full.
        """
        super().__init__(path)
        self.entries = Entries()
        self.lengths = LengthCounts()  # of the answers that are there
        self._ended = True  # whether the last line has its newline
        self._forgotten = False
        self._unsynced = 0  # rows that were written since the last sync
        self._reader: IO[bytes] | None = None
        if path.is_symlink():
            raise RequestError(f"{path} is a link, which Ingot did not make; move it away")
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"):  # the first: \n stays \n on Windows
            flags |= getattr(os, name, 0)
        with writing(path, _KEPT):
            self._descriptor = os.open(path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise RequestError(_NOT_OURS.format(path))
            _lock(self._descriptor, path)
            self._end = self._scan()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._synced_at = time.monotonic()

    def begin(self, settings: JsonObject) -> None:
        """Write a header, unless the last one says the same: what follows was made so. Damaged
        lines count as told from here on."""
        if self._forgotten:
            os.ftruncate(self._descriptor, 0)
            self._begin_file()
            self._end, self._forgotten, self._ended = 0, False, True
        if not self._ended:
            self._write(b"\n")
            self._ended = True
        if self.settings != settings or self.version != VERSION:
            if self._sealed_from is None:
                self._sealed_from = self._end
            self._write(sealed_line({"ingot": HEADER, "version": VERSION, "settings": settings}))
            self.settings, self.version = settings, VERSION
            self._fsync()
        if self.damaged:
            self.note(DAMAGE, {"offsets": list(self.damaged)})

    def note(self, kind: str, values: JsonObject, *, sync: bool = True) -> None:
        """Write a note on this run, of one of the kinds in app.batch.journal.lines, with the
        present time; without ``sync`` a power cut may take it away."""
        self._write(sealed_line({"ingot": kind, "at": round(time.time(), 3), **values}))
        if sync:
            self._fsync()

    def append(self, key: bytes, index: int, answer: Answer) -> None:
        """Add a finished row. It is on the disk after the next ``sync``; until then only a power
        cut or a crash of the system can take it away."""
        offset, answered = self._end, answer.error is None
        record = {"key": key.hex(), "index": index, "ok": answered, "answer": answer.to_json()}
        self._write(sealed_line(record))
        self._unsynced += 1
        self.entries.add(key, index, offset, answered)
        if self._unsynced >= _GROUP_ROWS:
            self._fsync()

    @property
    def synced(self) -> bool:
        """Whether every row is on the disk."""
        return not self._unsynced

    def sync(self, *, after_s: float = 0.0) -> None:
        """Put every appended row on the disk if the last time is at least ``after_s`` ago. Raises
        OutOfMemoryError when the disk is full."""
        if self._unsynced and time.monotonic() - self._synced_at >= after_s:
            self._fsync()

    def _write(self, line: bytes) -> None:
        """Append a line; one that does not fit whole is taken back."""
        written = 0
        with writing(self.path, _KEPT):
            try:
                while written < len(line):
                    written += os.write(self._descriptor, memoryview(line)[written:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._end)
                raise
        self._end += len(line)

    def _fsync(self) -> None:
        with writing(self.path, _KEPT):
            os.fsync(self._descriptor)
        self._unsynced = 0
        self._synced_at = time.monotonic()

    def read(self, offset: int, key: bytes) -> Answer:
        """The answer at ``offset``; raises IngotError if it is not that of ``key``."""
        if self._reader is None:
            self._reader = self.path.open("rb")
        self._reader.seek(offset)
        record = self.again(offset, self._reader.readline())
        if record is None or record.get("key") != key.hex():
            raise IngotError(
                f"{self.path} was damaged at byte {offset} while the job ran; the same command "
                "says what is lost and resumes with the rest"
            )
        return Answer.from_json(record["answer"])

    def forget(self) -> None:
        """Ignore what is there; ``begin`` will drop it."""
        self.entries = Entries()
        self.settings, self.lengths = None, LengthCounts()
        self._forgotten = True

    def close(self) -> None:
        """Sync and unlock. A journal that never got its header leaves no file behind."""
        try:
            self.sync()
        finally:
            if self._end == 0:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            if self._reader is not None:
                self._reader.close()
            os.close(self._descriptor)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _scan(self) -> int:
        """Index every whole line; return the end of the file."""
        offset, line, end = 0, b"\n", 0
        for offset, line in lines_of(self.path):
            self.take(offset, line)
            end = offset + len(line)
            if self.version not in VERSIONS:
                raise RequestError(
                    f"{self.path} was written by another version of Ingot; "
                    "move it out of the way, or name another output"
                )
        self._ended = line.endswith(b"\n")
        if end and not self.whole_lines and not _torn_header(line, offset):
            raise RequestError(_NOT_OURS.format(self.path))
        return end

    def _other_settings(self) -> None:
        super()._other_settings()
        self.lengths = LengthCounts()

    def _row(self, record: JsonObject, offset: int) -> None:
        super()._row(record, offset)
        self.entries.add(bytes.fromhex(record["key"]), record["index"], offset, record["ok"])
        if record["ok"]:
            self.lengths.add_record(record["answer"])


def _lock(descriptor: int, path: Path) -> None:
    # Windows refuses to delete or truncate a file that another process holds.
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(f"another job is writing to {path}") from error


def _torn_header(line: bytes, offset: int) -> bool:
    """Whether a file's last line is all of it, and what a crash may leave of a journal's first: a
    piece, or zeros."""
    piece = line.rstrip(b"\0")
    ours = piece.startswith(_MAGIC) or _MAGIC.startswith(piece)
    return offset == 0 and ours and not line.endswith(b"\n")


# Which journal record answers which row.
#
# Rows with the same content have the same key, so records are handed out one at a time: the
# second of two equal rows gets the second record, and is computed if there is none.


class Matcher:
    """Hands out the records of ``entries``, to rows in the order of the input."""

    def __init__(self, entries: Entries) -> None:
        """Index ``entries`` as they are now: 24 bytes a record."""
        self._good = _Sorted(entries, answered=True)
        self._bad = _Sorted(entries, answered=False)
        self._keep_failures = entries.keep_failures
        # At the position of each key's first record: how many of the key's records are taken.
        self._taken = array("i", bytes(4 * len(self._good.keys)))

    def take(self, key: bytes) -> int | None:
        """The offset of an answer for ``key`` that no earlier row took; where failures stand, that
        of a failure if there is no answer. None: the row is to be computed."""
        start, end = self._good.range(key)
        if start == end or self._taken[start] == end - start:
            return self.failure(key) if self._keep_failures else None
        at = start + self._taken[start]
        self._taken[start] += 1
        return self._good.offsets[at]

    def failure(self, key: bytes) -> int | None:
        """The offset of the latest failure recorded for ``key``."""
        start, end = self._bad.range(key)
        return max(self._bad.offsets[start:end]) if end > start else None


class _Sorted:
    """Records in the order of their keys; those of one key in the order of rows, then of time."""

    def __init__(self, entries: Entries, *, answered: bool) -> None:
        chosen = np.array(entries.answered) == answered
        offsets, indexes, keys = (
            np.array(column)[chosen] for column in (entries.offsets, entries.indexes, entries.keys)
        )
        order = np.lexsort((offsets, indexes, keys))  # by the last one first
        self.keys: array[int] = array("Q", keys[order].tobytes())
        self.offsets: array[int] = array("q", offsets[order].tobytes())

    def range(self, key: bytes) -> tuple[int, int]:
        wanted = short_key(key)
        start = bisect_left(self.keys, wanted)
        return start, bisect_right(self.keys, wanted, lo=start)
