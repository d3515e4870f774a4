"""The output file: one record for each row, in the order of the input, put in place in one step."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from app.batch.input.row import Row
from app.batch.input.source import Source, Stamp
from app.batch.journal.journal import Journal, Matcher
from app.batch.output.records import OutputFormat, Record, RecordForm, Records, writing
from app.batch.report.answer_lengths import RowCounts
from app.openai.answer import Answer
from quantize.disk import outfile
from runtimes.errors import RequestError


def answers(
    source: Source, journal: Journal, *, errors: bool = True
) -> Iterator[tuple[Row, Answer | None]]:
    """None for a row without an answer or error, and without ``errors`` for one that failed. Raises
    IngotError when the journal is damaged."""
    matcher = Matcher(journal.entries)
    for row in source.rows():
        if row.problem is not None:
            answer: Answer | None = Answer(error=row.problem)
        else:
            offset = matcher.take(row.key)
            if offset is None and errors:
                offset = matcher.failure(row.key)
            answer = None if offset is None else journal.read(offset, row.key)
        if not errors and answer is not None and answer.error is not None:
            answer = None
        yield row, answer


def publish(
    source: Source,
    stamp: Stamp,
    journal: Journal,
    out: Path,
    form: RecordForm,
    *,
    errors: bool = True,
) -> RowCounts:
    """Write ``out`` from the journal, in place of an older one unless nothing changed; rows that
    failed only with ``errors``.

    Raises RequestError when the input is no longer what ``stamp`` says, OutOfMemoryError when the
    disk is full; the journal keeps every row in both cases.
    """
    journal.sync()
    published = RowCounts()

    def records() -> Iterator[Record]:
        nonlocal published
        published = RowCounts()  # tables are written in two passes
        for row, answer in answers(source, journal, errors=errors):
            if answer is not None:
                published.finished(answer.error)
                yield form.record(row, answer)

    kept = f"Every row is in {journal.path}"
    write_output(out, form.format, records, kept, lambda: check_unchanged(source, stamp))
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


def check_unchanged(source: Source, stamp: Stamp) -> None:
    """Raises RequestError when the input is no longer what ``stamp`` says."""
    if source.stamp() != stamp:
        raise RequestError(
            f"{source.name} changed while the job ran; run the same command again "
            "(rows that stayed the same are not computed again)"
        )
