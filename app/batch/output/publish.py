"""The output file, from the journal: put in place in one step, in the order of the input
(``publish``), or growing while the job runs (``UnorderedOutput``)."""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

from app.batch.input.source import Row, Source
from app.batch.journal.journal import Journal, Matcher
from app.batch.output.records import OutputFormat, Record, RecordForm, Records, dump_line, writing
from app.batch.report.eta import RowCounts
from app.openai.answer import Answer
from quantize.disk import outfile


def answers(
    source: Source, journal: Journal, *, errors: bool = True
) -> Iterator[tuple[Row, Answer]]:
    """Rows that have an answer or, with ``errors``, an error. Raises IngotError when the journal is
    damaged."""
    matcher = Matcher(journal.entries)
    for row in source.rows():
        answer = Answer(error=row.problem)
        if row.problem is None:
            offset = matcher.take(row.key)
            if offset is None and errors:
                offset = matcher.failure(row.key)
            if offset is None:
                continue
            answer = journal.read(offset, row.key)
        if errors or answer.error is None:
            yield row, answer


def publish(
    source: Source, journal: Journal, out: Path, form: RecordForm, *, errors: bool = True
) -> RowCounts:
    """Write ``out`` from the journal, in place of an older one unless nothing changed; rows that
    failed only with ``errors``.

    Raises RequestError when the input is no longer what was scanned, OutOfMemoryError when the disk
    is full; the journal keeps every row in both cases.
    """
    journal.sync()
    published = RowCounts()

    def records() -> Iterator[Record]:
        nonlocal published
        published = RowCounts()  # tables are written in two passes
        for row, answer in answers(source, journal, errors=errors):
            published.finished(answer.error)
            yield form.record(row, answer)

    kept = f"Every row is in {journal.path}"
    write_output(out, form.format, records, kept, source.check_unchanged)
    return published


def write_output(
    out: Path,
    format: OutputFormat,
    records: Records,
    kept: str,
    check: Callable[[], None] | None = None,
) -> None:
    """Write ``out`` beside itself and put it in place, unless it has the same content already.
    ``check`` is called before that. A link stays one: what it leads to is written. Raises what
    `writing` makes of an OSError."""
    name = f"{os.path.basename(os.path.realpath(out))}.partial"
    with writing(out, kept), outfile(out, name, keep_same=True) as partial:
        format.write(partial, records)
        if check is not None:
            check()


class UnorderedOutput:
    """Output that grows while the job runs: each answer is appended once it is safe in the journal.
    Not thread-safe; the journal's lock keeps other jobs off.

    A kill may leave the file behind the journal, or end it in the middle of a line. Before a run
    goes on, the file is compared with the journal line by line: what is missing is appended, and a
    file that does not agree with the journal (another input, rows that failed and are tried again)
    is made anew.
    """

    def __init__(self, out: Path, form: RecordForm, journal: Journal) -> None:
        self._out, self._form, self._journal = out, form, journal
        self._kept = f"Every row is in {journal.path}"
        self._pending = bytearray()

    def put(self, row: Row, answer: Answer) -> None:
        """Take a row's answer; the journal has it already."""
        self._pending += self._line(row, answer)

    def flush(self) -> None:
        """Append what is safe in the journal. Raises OutOfMemoryError or RequestError."""
        if self._pending and self._journal.synced:
            with writing(self._out, self._kept), self._out.open("ab") as file:
                file.write(self._pending)
            self._pending.clear()

    def settle(self, source: Source, rows: int, *, errors: bool) -> RowCounts:
        """Make the file hold exactly what the journal has for the ``rows`` of ``source``; rows that
        failed only with ``errors``. Raises OutOfMemoryError or RequestError, the latter before
        anything is written if the input is no longer what was scanned."""
        self._pending.clear()
        source.check_unchanged()
        published = RowCounts()
        with writing(self._out, self._kept):
            held = self._held(rows)
            agree = lines = 0
            for row, answer in answers(source, self._journal, errors=errors):
                published.finished(answer.error)
                lines += 1
                agree += held[row.index] == _hash(self._line(row, answer))
            source.check_unchanged()
            if agree < sum(map(bool, held)):
                publish(source, self._journal, self._out, self._form, errors=errors)
            elif agree < lines:
                with self._out.open("ab") as file:
                    for row, answer in answers(source, self._journal, errors=errors):
                        if not held[row.index]:
                            file.write(self._line(row, answer))
                    file.flush()
                    os.fsync(file.fileno())
        return published

    def _held(self, rows: int) -> array[int]:
        """For each row of the input, and one more for lines that are of no row, the hash of its
        line in the file; 0 where there is none. A torn last line is cut off. Raises OSError."""
        held, end = array("q", bytes(8 * (rows + 1))), 0
        with contextlib.suppress(FileNotFoundError), self._out.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    os.truncate(self._out, end)
                    break
                end += len(line)
                index = self._index(line)
                if index is None or not 0 <= index < rows or held[index]:
                    index = rows
                held[index] = _hash(line)
        return held

    def _index(self, line: bytes) -> int | None:
        assert self._form.format.index is not None
        try:
            index = self._form.format.index(json.loads(line))
        except (ValueError, RecursionError, AttributeError):  # no JSON, or no object
            return None
        return index if isinstance(index, int) else None

    def _line(self, row: Row, answer: Answer) -> bytes:
        return dump_line(self._form.record(row, answer))


def _hash(line: bytes) -> int:
    return hash(line) or 1
