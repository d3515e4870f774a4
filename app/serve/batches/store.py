"""All batches and files of a server: a folder each on disk, and in memory. Changes are
persisted before they become visible, but for how many rows are done, which the journals have."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from app.batch.journal.journal import journal_path
from app.batch.journal.lines import sealed, sealed_line
from app.batch.output.records import writing
from app.openai.request import ENDPOINTS
from app.openai.responses import usage_body
from app.openai.validation import JsonObject
from app.serve.batches.folder import (
    BATCH_ID,
    BATCHES,
    FILE_ID,
    FILES,
    open_plain,
    prepare,
    put,
    remove,
    replace_plain,
    unfinished,
)
from app.serve.errors import HttpError
from runtimes.untrusted import load_json, visible

logger = logging.getLogger(__name__)

RECORD = "batch.json"
MOST_MODEL = 256  # characters of a model's name
_MOST_BYTES = 2**20
_MOST_MESSAGE = 1000  # characters that are written; an earlier version wrote longer ones
_MOST_TEXT = 20_000  # characters that are read
_MOST_ITEMS = 100  # errors, or pairs of an object
_MOST_NUMBER = 2**53
_Text = Annotated[str, Field(max_length=_MOST_TEXT)]
_Whole = Annotated[int, Field(ge=0, le=_MOST_NUMBER)]
_FileId = Annotated[str, Field(pattern=FILE_ID)]
_FEW = Field(max_length=_MOST_ITEMS)
Status = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled"
]
Ending = Literal["completed", "failed", "cancelled"]
ENDED: frozenset[Status] = frozenset(get_args(Ending))


# OpenAI's object has a time for each, also for what never happens here: batches do not expire.
_TIMES = "in_progress expires finalizing completed failed expired cancelling cancelled".split()


class DamagedRecordError(ValueError):
    """``batch.json`` is not what a server writes."""


@dataclass(frozen=True, slots=True)
class BatchError:
    """Why a batch failed, or waits. ``line`` is of its input. Errors are made by ``of``, whose
    message may quote anything."""

    code: _Text
    message: _Text
    line: _Whole | None
    param: _Text | None

    @classmethod
    def of(
        cls,
        code: str,
        message: str,
        line: int | None = None,
        param: str | None = None,
        most: int = _MOST_MESSAGE,
    ) -> BatchError:
        """With at most so many characters of ``message``, all of which can be shown and stored."""
        return cls(code, visible(message[:most])[:most], line, param)


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Rows of a batch."""

    total: _Whole
    completed: _Whole
    failed: _Whole


NO_ROWS = BatchCounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """State of a batch."""

    id: str
    created: Annotated[float, Field(ge=0, le=_MOST_NUMBER)]  # Unix seconds
    endpoint: str
    input_file_id: _FileId
    metadata: Annotated[Mapping[_Text, _Text], _FEW] | None = None
    status: Status = "validating"
    at: Mapping[Status, _Whole] = field(default_factory=dict)  # when it first had each status
    model: _Text | None = None
    counts: BatchCounts = NO_ROWS
    errors: Annotated[tuple[BatchError, ...], _FEW] = ()
    # Once this is known no row is asked any more, and its files have their names: whatever ends the
    # server while they are written, they are written once.
    ending: Ending | None = None
    output_file_id: _FileId | None = None
    error_file_id: _FileId | None = None
    usage: Annotated[Mapping[_Text, _Whole], _FEW] | None = None
    kept: bool = False  # its journal stays, since its files could not be written

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in ENDED

    def now(self, status: Status, **changes: Any) -> Batch:
        """The batch with another status, from this moment on."""
        at = {**self.at, status: int(time.time())}
        return replace(self, status=status, at=at, **changes)

    def as_json(self) -> JsonObject:
        """OpenAI's batch object."""
        ended, usage = self.ended, self.usage
        at: Mapping[Any, int] = self.at
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": [asdict(one) for one in self.errors]}
            if self.errors
            else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id if ended else None,
            "error_file_id": self.error_file_id if ended else None,
            "created_at": int(self.created),
            **{f"{name}_at": at.get(name) for name in _TIMES},
            "request_counts": asdict(self.counts),
            "metadata": None if self.metadata is None else dict(self.metadata),
            "usage": None if usage is None else usage_body(usage),
        }


_BATCH = TypeAdapter(Batch)


def write_record(folder: Path, batch: Batch) -> None:
    """Replace ``batch.json``: a reader finds the old record or the new, also after a power cut.
    Raises OSError; DamagedRecordError where the record could not be read again."""
    line = sealed_line(asdict(batch))
    _parsed(line, batch.id)
    replace_plain(folder / RECORD, line)


def read_record(folder: Path) -> Batch:
    """Raises DamagedRecordError."""
    try:
        with open_plain(folder / RECORD) as file:
            line = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise DamagedRecordError(error.strerror or type(error).__name__) from error
    return _parsed(line, folder.name)


def _parsed(line: bytes, identity: str) -> Batch:
    if len(line) > _MOST_BYTES:
        raise DamagedRecordError(f"it has more than {_MOST_BYTES:,} bytes")
    if not sealed(line):
        raise DamagedRecordError("its checksum is wrong")
    said = line[: line.rindex(b',"crc"')] + b"}"
    try:
        batch = _BATCH.validate_json(said, strict=True, extra="forbid")
    except ValidationError as error:
        raise DamagedRecordError(_wrong(error.errors()[0])) from error
    wrong = [] if batch.id == identity else ["id"]  # by which its folder is found
    if batch.status in ("in_progress", "finalizing") and batch.model is None:
        wrong.append("model")
    if batch.endpoint not in ENDPOINTS:
        wrong.append("endpoint")
    if wrong:
        raise DamagedRecordError(f"its {wrong[0]!r} is not one that a server writes")
    return batch


def _wrong(error: ErrorDetails) -> str:
    name, *inner = error["loc"] or ("",)
    what = {"unexpected_keyword_argument": "has", "missing": "lacks"}.get(error["type"])
    if what is not None and not inner:
        return f"another version of Ingot wrote it: it {what} {name!r:.60}"
    return f"its {name!r} is not one that a server writes" if name else error["msg"]


def damaged_batch(folder: Path, error: DamagedRecordError) -> Batch:
    """Failed batch that stands for one without a readable record; its folder is not touched."""
    try:
        at = max(0.0, folder.stat().st_mtime)
    except OSError:
        at = time.time()
    said = f"its {RECORD} is damaged: {error}. What was answered is in the journal beside it"
    errors = (BatchError.of("damaged_record", said),)
    return Batch(
        folder.name, at, next(iter(ENDPOINTS)), "", status="failed", at={"failed": int(at)},
        errors=errors,
    )  # fmt: skip


INPUT, OUT = "input.jsonl", "out.jsonl"
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
        """Folder of a batch's input, journal and record."""
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
        """List the batches that have not ended, the oldest first."""
        return list(self._open.values())

    def _note(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        if batch.ended:
            self._open.pop(batch.id, None)
        else:
            self._open[batch.id] = batch

    def add(self, batch: Batch, content: Path) -> None:
        """A new batch, which keeps the ``content`` of its input whatever becomes of that file.
        Raises RequestError or OutOfMemoryError."""
        folder = self.folder(batch)
        # Where the data is concerns no client.
        with writing(Path(BATCHES, batch.id)), unfinished(folder) as made:
            _link(content, made / INPUT)
            write_record(made, batch)
            put(made, folder)
        with self.changed:
            self._note(batch)
            self.changed.notify_all()

    def change(self, identity: str, change: Callable[[Batch], Batch]) -> Batch:
        """Apply ``change`` to a batch and keep the result. Raises as ``get``, ``add`` and
        ``change``."""
        with self.changed:
            before = self.get(identity)
            after = change(before)
            if after != before:
                with writing(Path(BATCHES, after.id)):
                    write_record(self.folder(after), after)
                self._note(after)
                self.changed.notify_all()
            return after

    def count(self, identity: str, completed: int, failed: int) -> None:
        """Note the rows of a batch that are done. Its journal has them: they are in its record
        only when something else changes."""
        with self.changed:
            batch = self.get(identity)
            counts = BatchCounts(batch.counts.total, completed, failed)
            self._note(replace(batch, counts=counts))

    def begun(self, batch: Batch, stage: str) -> int:
        """Note that ``stage`` of a batch begins, until it is ``over``. Returns how many processes
        have ended within it since a row was done. Raises as ``add``."""
        counts = self.get(batch.id).counts
        path, died, rows = self.folder(batch) / ATTEMPT, 0, counts.completed + counts.failed
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
        """Forget the stage that was ``begun``: it has ended, and the process lives."""
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
    """Link ``content``, which never changes; copy it where the disk has no links."""
    try:
        os.link(content, place)
    except OSError:
        shutil.copyfile(content, place)
        with place.open("rb+") as file:
            os.fsync(file.fileno())


# Files that clients upload and that batches make: a folder each, with ``content`` and
# ``meta.json``. What a client calls a file is data, and never part of a path.


Purpose = Literal["batch", "batch_output"]
BATCH_INPUT: Purpose = "batch"
OUTPUT: Purpose = "batch_output"
MOST_NAME = 512  # characters of what a client calls a file
_CONTENT, _META = "content", "meta.json"
_MOST_META = 2**16  # bytes
_MOST_SECONDS = 2**40  # since 1970


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, as ``meta.json`` describes it."""

    id: str
    filename: str
    purpose: Purpose
    bytes: int
    created: Annotated[float, Field(ge=0, le=_MOST_SECONDS)]  # Unix seconds

    def as_json(self) -> JsonObject:
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


_FILE = TypeAdapter(StoredFile)


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
        with writing(self._called), unfinished(self._folder) as self._made:
            self._content = (self._made / _CONTENT).open("xb", buffering=1 << 20)

    def write(self, data: bytes | memoryview) -> None:
        """Append to it. Raises OutOfMemoryError for a full disk, RequestError for a broken one."""
        with writing(self._called):
            self._content.write(data)
        self.bytes += len(data)

    def keep(self, filename: str, purpose: Purpose) -> StoredFile:
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
        """Path of a file's content. Raises as ``get``."""
        return self.folder / self.get(identity).id / _CONTENT

    def open(self, identity: str) -> BinaryIO:
        """Open the content of a file. Raises HttpError for an id that no file has, or a content
        that is gone."""
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
        with open_plain(folder / _META) as file:
            said = _FILE.validate_json(file.read(_MOST_META + 1), strict=True)
        name = visible(said.filename[:MOST_NAME])[:MOST_NAME]
        stored = replace(said, id=folder.name, filename=name, bytes=about.st_size)
        if stored.bytes != said.bytes:
            logger.warning("%s has %d bytes, and not what %s says", content, stored.bytes, _META)
        return stored
    except (OSError, ValueError) as error:
        why = visible(
            _wrong(error.errors()[0]) if isinstance(error, ValidationError) else str(error)
        )
        logger.warning("%s is damaged (%s): the file has lost its name", folder / _META, why[:200])
        created = max(0.0, about.st_mtime)
        return StoredFile(folder.name, f"{folder.name}.jsonl", BATCH_INPUT, about.st_size, created)
