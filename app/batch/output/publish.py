"""The output file: one record for each row, in the order of the input, put in place in one step."""

import contextlib
import errno
import filecmp
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from app.batch.input.source import Source, Stamp
from app.batch.journal.answers import Published, answers
from app.batch.journal.journal import Journal
from app.batch.output.records import OutputFormat, Record, RecordForm, Records
from runtimes.errors import IngotError, OutOfMemoryError, RequestError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def publish(
    source: Source,
    stamp: Stamp,
    journal: Journal,
    out: Path,
    form: RecordForm,
    *,
    errors: bool = True,
) -> Published:
    """Write ``out`` from the journal, in place of an older one unless nothing changed; rows that
    failed only with ``errors``.

    Raises RequestError when the input is no longer what ``stamp`` says, OutOfMemoryError when the
    disk is full; the journal keeps every row in both cases.
    """
    journal.sync()
    published = Published()

    def records() -> Iterator[Record]:
        nonlocal published
        published = Published()  # tables are written in two passes
        for row, answer in answers(source, journal, errors=errors):
            published.count(answer)
            if answer is not None:
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
    ``output_error`` makes."""
    real = out.resolve()
    partial = real.with_name(real.name + ".partial")
    try:
        format.write(partial, records)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        if check is not None:
            check()
        if not (real.exists() and filecmp.cmp(partial, real, shallow=False)):
            os.replace(partial, real)
            _sync_folder(real.parent)
    except OSError as error:
        raise output_error(error, out, kept) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def check_unchanged(source: Source, stamp: Stamp) -> None:
    """Raises RequestError when the input is no longer what ``stamp`` says."""
    if source.stamp() != stamp:
        raise RequestError(
            f"{source.name} changed while the job ran; run the same command again "
            "(rows that stayed the same are not computed again)"
        )


def output_error(error: OSError, out: Path, kept: str) -> IngotError:
    """What is told when ``out`` cannot be written; ``kept`` says where the answers are."""
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return OutOfMemoryError(
            f"{out} cannot be written: {reason}. {kept}; make room and run the same command again"
        )
    return RequestError(f"{out} cannot be written: {reason}")


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
