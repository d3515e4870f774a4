"""An output that grows while the job runs: each answer is appended once it is safe in the journal.

A kill may leave the file behind the journal, or end it in the middle of a line. Before a run goes
on, the file is compared with the journal line by line: what is missing is appended, and a file that
does not agree with the journal (another input, rows that failed and are tried again) is made anew.
"""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.input.source import Source, Stamp
from app.batch.journal.answers import Answered, Published, answers
from app.batch.journal.journal import Journal
from app.batch.output.formats import OutputFormat, RecordForm
from app.batch.output.openai import index_of
from app.batch.output.publish import check_unchanged, output_error, write_output
from app.batch.output.wire import dump_line
from app.batch.schedule.work import Work


class UnorderedOutput:
    """The growing file. Not thread-safe; the journal's lock keeps other jobs off."""

    def __init__(self, out: Path, form: RecordForm, journal: Journal) -> None:
        self._out, self._form, self._journal = out, form, journal
        self._pending = bytearray()
        self._descriptor: int | None = None

    def put(self, work: Work, answer: dict[str, Any]) -> None:
        """Take a row's answer; the journal has it already."""
        self._pending += dump_line(self._form.record(work.row, answer, work.key))

    def flush(self) -> None:
        """Append what is safe in the journal. Raises OutOfMemoryError or RequestError."""
        if not self._pending or not self._journal.synced:
            return
        data, written = bytes(self._pending), 0
        self._pending.clear()
        try:
            if self._descriptor is None:
                binary = getattr(os, "O_BINARY", 0)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | binary
                self._descriptor = os.open(self._out, flags, 0o644)
            while written < len(data):
                written += os.write(self._descriptor, memoryview(data)[written:])
        except OSError as error:
            raise self._error(error) from error

    def settle(self, source: Source, stamp: Stamp, digest: bytes, *, errors: bool) -> Published:
        """Make the file hold exactly what the journal has for the rows of ``source``; rows that
        failed only with ``errors``. Raises OutOfMemoryError or RequestError, the latter before
        anything is written if the input is no longer what ``stamp`` says."""
        self._pending.clear()
        self.close()
        check_unchanged(source, stamp)
        published = Published()
        try:
            held = _scan(self._out, self._form.format)
            agrees, missing = True, 0
            cursor = _Cursor(held)
            for found in answers(source, self._journal, digest, errors=errors):
                published.count(found)
                line = self._line(found)
                there = cursor.at(found.row.index)
                agrees = agrees and (there is None or (line is not None and there == hash(line)))
                missing += line is not None and there is None
            check_unchanged(source, stamp)
            if not (agrees and cursor.done and cursor.distinct):
                self._rebuild(source, stamp, digest, errors=errors)
            elif missing:
                self._append(source, digest, held, errors=errors)
        except OSError as error:
            raise self._error(error) from error
        return published

    def close(self) -> None:
        """Close the file; what is pending was never written."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _line(self, found: Answered) -> bytes | None:
        if found.answer is None:
            return None
        return dump_line(self._form.record(found.row, found.answer, found.key))

    def _append(self, source: Source, digest: bytes, held: _Held, *, errors: bool) -> None:
        cursor = _Cursor(held)
        with self._out.open("ab") as file:
            for found in answers(source, self._journal, digest, errors=errors):
                line = self._line(found)
                if cursor.at(found.row.index) is None and line is not None:
                    file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _rebuild(self, source: Source, stamp: Stamp, digest: bytes, *, errors: bool) -> None:
        def records() -> Iterator[dict[str, Any]]:
            for found in answers(source, self._journal, digest, errors=errors):
                if found.answer is not None:
                    yield self._form.record(found.row, found.answer, found.key)

        write_output(self._out, self._form, records, lambda: check_unchanged(source, stamp))

    def _error(self, error: OSError) -> Exception:
        return output_error(error, self._out, f"Every row is in {self._journal.path}")


@dataclass(slots=True)
class _Held:
    """The lines of the file in the order of their rows: index, and the hash of the line."""

    indexes: array[int]
    hashes: array[int]


class _Cursor:
    """Goes through the lines while rows come in the order of the input."""

    def __init__(self, held: _Held) -> None:
        self._held = held
        self._next = 0
        self.distinct = True  # no row has two lines, and none lies between the rows asked for

    def at(self, index: int) -> int | None:
        """The hash of the row's line; None if it has none."""
        indexes = self._held.indexes
        while self._next < len(indexes) and indexes[self._next] < index:
            self._next += 1
            self.distinct = False
        if self.done or indexes[self._next] != index:
            return None
        self._next += 1
        return self._held.hashes[self._next - 1]

    @property
    def done(self) -> bool:
        """Whether every line has been asked for."""
        return self._next == len(self._held.indexes)


def _scan(path: Path, format: OutputFormat) -> _Held:
    """What the file holds, after a torn last line has been cut off. Raises OSError."""
    indexes, hashes = array("q"), array("q")
    end = 0
    with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=1 << 20) as file:
        for line in file:
            if not line.endswith(b"\n"):
                os.truncate(path, end)
                break
            end += len(line)
            indexes.append(_index_of(line, format))
            hashes.append(hash(line))
    order = sorted(range(len(indexes)), key=indexes.__getitem__)
    return _Held(
        array("q", map(indexes.__getitem__, order)), array("q", map(hashes.__getitem__, order))
    )


def _index_of(line: bytes, format: OutputFormat) -> int:
    """The index of the row that a line is of; -1 for a line that is not ours, which no row has."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return -1
    if not isinstance(record, dict):
        return -1
    index = index_of(str(record.get("id"))) if format == "openai" else record.get("index")
    return index if isinstance(index, int) and -1 < index < 2**62 else -1
