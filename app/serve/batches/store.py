"""All batches: on disk, a folder each, and in memory. Every change is on the disk before it is
told."""

import json
import logging
import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from app.batch.journal.journal import journal_path
from app.batch.output.wire import writing
from app.serve.batches.check import INPUT
from app.serve.batches.data import BATCH_ID, BATCHES, prepare, put, replace_plain, unfinished
from app.serve.batches.record import (
    RECORD,
    Batch,
    DamagedRecordError,
    damaged_batch,
    read_record,
    write_record,
)
from app.serve.batches.results import OUT
from app.serve.errors import HttpError
from runtimes.untrusted import load_json

logger = logging.getLogger(__name__)

ATTEMPT = "attempt.json"
# What a batch has no use for when it has ended.
_WORKING = (
    INPUT,
    journal_path(Path(OUT)).name,
    ATTEMPT,
    *(f"{name}.partial" for name in (RECORD, ATTEMPT)),
)


def new_batch_id() -> str:
    """An id that no batch has."""
    return f"batch_{secrets.token_hex(12)}"


class Batches:
    """Thread-safe. ``changed`` guards every change and is notified of it."""

    def __init__(self, folder: Path) -> None:
        """Raises RequestError or OutOfMemoryError where ``folder`` cannot be written."""
        self._folder = folder
        self.changed = threading.Condition()
        self._batches: dict[str, Batch] = {}  # the oldest first
        self._open: dict[str, Batch] = {}  # those that have not ended
        self.rows: Counter[tuple[str, str]] = Counter()  # of those that have, by model and status
        found = []
        for path in prepare(folder, BATCH_ID):
            try:
                batch = read_record(path)
            except DamagedRecordError as error:
                batch = damaged_batch(path, error)
                logger.warning("%s: %s", path, batch.errors[0].message)
            else:
                if batch.ended and not batch.kept:
                    self.clear(batch)
            found.append(batch)
        for batch in sorted(found, key=lambda one: (one.created, one.id)):
            self._note(batch)

    def folder(self, batch: Batch) -> Path:
        """Where its input, journal and record are."""
        return self._folder / batch.id

    def get(self, identity: str) -> Batch:
        """Raises HttpError for an id that no batch has."""
        found = self._batches.get(identity)
        if found is None:
            raise HttpError(404, "batch_not_found", f"there is no batch {identity[:60]!r}")
        return found

    def all(self) -> list[Batch]:
        """The oldest first."""
        return list(self._batches.values())

    def open(self) -> list[Batch]:
        """Those that have not ended, the oldest first: few, whatever there was before."""
        return list(self._open.values())

    def _note(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        if not batch.ended:
            self._open[batch.id] = batch
            return
        self._open.pop(batch.id, None)
        counts = {"completed": batch.counts.completed, "failed": batch.counts.failed}
        for status, count in counts.items():
            if count:
                self.rows[batch.model or "", status] += count

    def add(self, batch: Batch, content: Path) -> None:
        """A new batch, which keeps the ``content`` of its input whatever becomes of that file.
        Raises RequestError or OutOfMemoryError."""
        folder = self.folder(batch)
        with writing(Path(BATCHES, batch.id)):  # where the data is concerns no client
            made = unfinished(folder)
            try:
                _link(content, made / INPUT)
                write_record(made, batch)
                put(made, folder)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
        with self.changed:
            self._note(batch)
            self.changed.notify_all()

    def change(self, identity: str, change: Callable[[Batch], Batch]) -> Batch:
        """What ``change`` makes of a batch. Raises as ``get`` and ``add``, and what it raises."""
        with self.changed:
            before = self.get(identity)
            after = change(before)
            if after != before:
                with writing(Path(BATCHES, after.id)):
                    write_record(self.folder(after), after)
                self._note(after)
                self.changed.notify_all()
            return after

    def begun(self, batch: Batch, stage: str, rows: int) -> int:
        """Note that ``stage`` of a batch begins, with so many ``rows`` done, until it is ``over``.
        Returns how many processes have ended within it since a row was done. Raises as ``add``."""
        path, died = self.folder(batch) / ATTEMPT, 0
        try:
            before = load_json(path, 1000)
            if before["stage"] == stage and before["rows"] >= rows:
                died = int(before["began"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
            logger.warning("%s is left out: %s", path, error)
        note = {"stage": stage, "rows": rows, "began": died + 1}
        with writing(Path(BATCHES, batch.id)):
            replace_plain(path, json.dumps(note).encode())
        return died

    def over(self, batch: Batch) -> None:
        """What was ``begun`` has ended, in whatever way: the process lives."""
        self._unlink(self.folder(batch) / ATTEMPT)

    def clear(self, batch: Batch) -> None:
        """Take away what an ended batch has no use for. What others put there stays."""
        for name in _WORKING:
            self._unlink(self.folder(batch) / name)

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s cannot be removed: %s", path, error.strerror or error)


def _link(content: Path, place: Path) -> None:
    """The same bytes, without copying them where the disk can. Files are never changed."""
    try:
        os.link(content, place)
    except OSError:
        shutil.copyfile(content, place)
        with place.open("rb+") as file:
            os.fsync(file.fileno())
