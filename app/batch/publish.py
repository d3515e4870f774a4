"""The output file: one record for each row, in the order of the input, put in place in one step."""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.batch.journal import Journal
from app.batch.matching import Matcher
from app.batch.records import failure_of, record_of
from app.batch.settings import row_key
from app.batch.source import Source, Stamp
from app.batch.tasks import RowProblem
from app.batch.wire import dump_line
from runtimes.errors import OutOfMemoryError, RequestError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(slots=True)
class Published:
    """What the output holds. ``unfinished`` rows have neither an answer nor an error."""

    answered: int = 0
    failed: int = 0
    unfinished: int = 0


def publish(source: Source, stamp: Stamp, journal: Journal, digest: bytes, out: Path) -> Published:
    """Write ``out`` from the journal, in place of an older one unless nothing changed.

    Raises RequestError when the input is no longer what ``stamp`` says, OutOfMemoryError when the
    disk is full; the journal keeps every row in both cases.
    """
    journal.sync()
    partial = out.with_name(out.name + ".partial")
    published = Published()
    try:
        with partial.open("wb", buffering=1 << 20) as file:
            for record in _records(source, journal, digest, published):
                file.write(dump_line(record))
            file.flush()
            os.fsync(file.fileno())
        if source.stamp() != stamp:
            raise RequestError(
                f"{source.name} changed while the job ran; run the same command again "
                "(rows that stayed the same are not computed again)"
            )
        if not (out.exists() and filecmp.cmp(partial, out, shallow=False)):
            os.replace(partial, out)
            sync_folder(out.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NO_ROOM:
            raise OutOfMemoryError(
                f"{out} cannot be written: {reason}. Every row is in {journal.path}; "
                "make room and run the same command again"
            ) from error
        raise RequestError(f"{out} cannot be written: {reason}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return published


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _records(
    source: Source, journal: Journal, digest: bytes, published: Published
) -> Iterator[dict[str, Any]]:
    matcher = Matcher(journal.entries)
    for row in source.rows():
        if isinstance(row.task, RowProblem):
            published.failed += 1
            yield record_of(row, failure_of(row.task))
            continue
        key = row_key(digest, row.task)
        if (offset := matcher.take(key)) is not None:
            published.answered += 1
        elif (offset := matcher.failure(key)) is not None:
            published.failed += 1
        else:
            published.unfinished += 1
            continue
        yield record_of(row, journal.read(offset, key))
