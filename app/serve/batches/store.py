"""All batches: on disk, a folder each, and in memory. Every change is on the disk before it is
told."""

import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from app.batch.output.wire import writing
from app.serve.batches.check import INPUT
from app.serve.batches.data import prepare, put, unfinished
from app.serve.batches.record import (
    RECORD,
    Batch,
    DamagedRecordError,
    damaged_batch,
    read_record,
    write_record,
)
from app.serve.errors import HttpError

logger = logging.getLogger(__name__)

_ID = re.compile(r"batch_[0-9a-f]{24}")


def new_batch_id() -> str:
    """An id that no batch has."""
    return f"batch_{secrets.token_hex(12)}"


class Batches:
    """Thread-safe. ``changed`` guards every change and is notified of it."""

    def __init__(self, folder: Path) -> None:
        """Raises RequestError or OutOfMemoryError where ``folder`` cannot be written."""
        self._folder = folder
        self.changed = threading.Condition()
        self._batches = {}
        for path in prepare(folder):
            if not _ID.fullmatch(path.name):
                logger.warning("%s is no batch of this server; it is left alone", path)
                continue
            try:
                batch = read_record(path)
            except DamagedRecordError as error:
                batch = damaged_batch(path, error)
                logger.warning("%s", batch.errors[0].message)
            else:
                if batch.ended and not batch.kept:
                    self.clear(batch)
            self._batches[path.name] = batch

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
        return sorted(self._batches.values(), key=lambda batch: (batch.created, batch.id))

    def add(self, batch: Batch, content: Path) -> None:
        """A new batch, which keeps the ``content`` of its input whatever becomes of that file.
        Raises RequestError or OutOfMemoryError."""
        folder = self.folder(batch)
        with writing(folder):
            made = unfinished(folder)
            try:
                _link(content, made / INPUT)
                write_record(made, batch)
                put(made, folder)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
        with self.changed:
            self._batches[batch.id] = batch
            self.changed.notify_all()

    def change(self, identity: str, change: Callable[[Batch], Batch]) -> Batch:
        """What ``change`` makes of a batch. Raises as ``get`` and ``add``, and what it raises."""
        with self.changed:
            before = self.get(identity)
            after = change(before)
            if after != before:
                folder = self.folder(after)
                with writing(folder):
                    write_record(folder, after)
                self._batches[identity] = after
                self.changed.notify_all()
            return after

    def clear(self, batch: Batch) -> None:
        """Take away what an ended batch has no use for."""
        for path in self.folder(batch).iterdir():
            if path.name != RECORD:
                path.unlink(missing_ok=True)


def _link(content: Path, place: Path) -> None:
    """The same bytes, without copying them where the disk can. Files are never changed."""
    try:
        os.link(content, place)
    except OSError:
        shutil.copyfile(content, place)
        with place.open("rb+") as file:
            os.fsync(file.fileno())
