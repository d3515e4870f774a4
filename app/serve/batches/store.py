"""All batches and files of a server: a folder each on disk, and in memory. Every change is on the
disk before it is told."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from app.batch.journal.journal import journal_path
from app.batch.output.records import writing
from app.serve.batches.record import (
    BATCH_ID,
    BATCHES,
    FILE_ID,
    FILES,
    INPUT,
    OUT,
    RECORD,
    Batch,
    DamagedRecordError,
    damaged_batch,
    open_plain,
    prepare,
    put,
    read_record,
    remove,
    replace_plain,
    unfinished,
    write_record,
)
from app.serve.errors import HttpError
from runtimes.untrusted import load_json, visible

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


# Files that clients upload and that batches make: a folder each, with ``content`` and
# ``meta.json``. What a client calls a file is data, and never part of a path.


BATCH_INPUT, OUTPUT = "batch", "batch_output"  # what files are for
MOST_NAME = 512  # characters of what a client calls a file
_CONTENT, _META = "content", "meta.json"
_MOST_META = 2**16  # bytes
_MOST_SECONDS = 2**40  # since 1970


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What ``meta.json`` says of a file."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created: float  # Unix seconds

    def as_json(self) -> dict[str, Any]:
        """OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created),
            "expires_at": None,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


def new_file_id() -> str:
    """An id that no file has."""
    return f"file-{secrets.token_hex(12)}"


class NewFile:
    """A file that is being written: it is nowhere before ``keep``. Not thread-safe."""

    def __init__(self, files: Files, identity: str) -> None:
        self.id = identity
        self._files = files
        self._folder = files.folder / identity
        self._called = Path(FILES, identity)  # to clients: where the data is concerns nobody else
        self.bytes = 0
        with writing(self._called):
            self._made = unfinished(self._folder)
            try:
                self._content = (self._made / _CONTENT).open("xb", buffering=1 << 20)
            except BaseException:
                shutil.rmtree(self._made, ignore_errors=True)
                raise

    def write(self, data: bytes | memoryview) -> None:
        """Append to it. Raises OutOfMemoryError for a full disk, RequestError for a broken one."""
        with writing(self._called):
            self._content.write(data)
        self.bytes += len(data)

    def keep(self, filename: str, purpose: str) -> StoredFile:
        """Make it one of the files, for good. Raises as ``write``."""
        name = visible(filename[:MOST_NAME])[:MOST_NAME]
        stored = StoredFile(self.id, name, purpose, self.bytes, time.time())
        with writing(self._called):
            self._content.flush()
            os.fsync(self._content.fileno())
            self._content.close()
            with (self._made / _META).open("x", encoding="ascii") as file:
                json.dump(asdict(stored), file)
                file.flush()
                os.fsync(file.fileno())
            put(self._made, self._folder)
        self._files.add(stored)
        return stored

    def drop(self) -> None:
        """Forget it, unless it was kept."""
        try:
            self._content.close()  # what is still in its buffer may not fit the disk
        except OSError:
            logger.debug("%s was not written whole", self.id)
        shutil.rmtree(self._made, ignore_errors=True)


class Files:
    """All of them. Thread-safe: each change is one step of a dict."""

    def __init__(self, folder: Path) -> None:
        """Raises RequestError or OutOfMemoryError where ``folder`` cannot be written."""
        self.folder = folder
        self.uploads = 0  # that are coming in now; only the event loop counts them
        found = (_read(path) for path in prepare(folder, FILE_ID))
        self._files = {file.id: file for file in found if file is not None}

    def begin(self, identity: str | None = None) -> NewFile:
        """A new file. Raises as ``NewFile.write``."""
        return NewFile(self, identity or new_file_id())

    def add(self, file: StoredFile) -> None:
        """Note a file that is in its place."""
        self._files[file.id] = file

    def __contains__(self, identity: str) -> bool:
        return identity in self._files

    def get(self, identity: str) -> StoredFile:
        """Raises HttpError for an id that no file has."""
        found = self._files.get(identity)
        if found is None:
            raise HttpError(404, "file_not_found", f"there is no file {identity[:60]!r}")
        return found

    def path(self, identity: str) -> Path:
        """Where its content lies. Raises as ``get``."""
        return self.folder / self.get(identity).id / _CONTENT

    def open(self, identity: str) -> BinaryIO:
        """Its content. Raises HttpError for an id that no file has, or a content that is gone."""
        try:
            return open_plain(self.path(identity))
        except FileNotFoundError:  # deleted at this moment
            raise HttpError(404, "file_not_found", f"there is no file {identity!r}") from None
        except OSError as error:
            logger.warning("%s cannot be read: %s", self.path(identity), error.strerror or error)
            said = f"the content of {identity} cannot be read; the server's log says why"
            raise HttpError(500, "unreadable_file", said) from error

    def all(self) -> list[StoredFile]:
        """The oldest first."""
        return sorted(self._files.values(), key=lambda file: (file.created, file.id))

    def delete(self, identity: str) -> None:
        """Raises as ``get``; OutOfMemoryError or RequestError where the disk refuses."""
        found = self.get(identity)
        if self._files.pop(identity, None) is None:
            return  # another request was faster
        try:
            with writing(Path(FILES, identity)):
                remove(self.folder / found.id)
        except BaseException:
            self._files[identity] = found
            raise


def _read(folder: Path) -> StoredFile | None:
    """The file in a folder. One whose ``meta.json`` is damaged keeps its content, and loses its
    name."""
    content = folder / _CONTENT
    try:
        with open_plain(content) as file:
            about = os.fstat(file.fileno())
    except OSError as error:
        logger.warning("%s is left out: %s", content, error.strerror or error)
        return None
    try:
        said = load_json(folder / _META, _MOST_META)
        name, purpose, created = said["filename"], said["purpose"], said["created"]
        if not isinstance(name, str) or purpose not in (BATCH_INPUT, OUTPUT):
            raise TypeError("its names are none")
        if type(created) not in (int, float) or not 0 <= created <= _MOST_SECONDS:
            raise TypeError("its time is none")
        name = visible(name[:MOST_NAME])[:MOST_NAME]
        stored = StoredFile(folder.name, name, purpose, about.st_size, created)
        if stored.bytes != said["bytes"]:
            logger.warning("%s has %d bytes, and not what %s says", content, stored.bytes, _META)
        return stored
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = visible(str(error))[:200]
        logger.warning("%s is damaged (%s): the file has lost its name", folder / _META, why)
        created = max(0.0, about.st_mtime)
        return StoredFile(folder.name, f"{folder.name}.jsonl", BATCH_INPUT, about.st_size, created)
