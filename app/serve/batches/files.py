"""Files that clients upload and that batches make: a folder each, with ``content`` and
``meta.json``. What a client calls a file is data, and never part of a path."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from app.batch.output.wire import writing
from app.serve.batches.data import FILE_ID, FILES, open_plain, prepare, put, remove, unfinished
from app.serve.errors import HttpError
from runtimes.untrusted import load_json, visible

logger = logging.getLogger(__name__)

INPUT, OUTPUT = "batch", "batch_output"  # what files are for
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
        if not isinstance(name, str) or purpose not in (INPUT, OUTPUT):
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
        return StoredFile(folder.name, f"{folder.name}.jsonl", INPUT, about.st_size, created)
