"""Files that clients upload and that batches make: a folder each, with ``content`` and
``meta.json``. What a client calls a file is data, and never part of a path."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.batch.output.wire import writing
from app.serve.batches.data import prepare, put, remove, unfinished
from app.serve.errors import HttpError

logger = logging.getLogger(__name__)

INPUT, OUTPUT = "batch", "batch_output"  # what files are for
_ID = re.compile(r"file-[0-9a-f]{24}")
_CONTENT, _META = "content", "meta.json"


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
        self.bytes = 0
        with writing(self._folder):
            self._made = unfinished(self._folder)
            self._content = (self._made / _CONTENT).open("wb", buffering=1 << 20)

    def write(self, data: bytes | memoryview) -> None:
        """Append to it. Raises OutOfMemoryError for a full disk, RequestError for a broken one."""
        with writing(self._folder):
            self._content.write(data)
        self.bytes += len(data)

    def keep(self, filename: str, purpose: str) -> StoredFile:
        """Make it one of the files, for good. Raises as ``write``."""
        stored = StoredFile(self.id, filename, purpose, self.bytes, time.time())
        with writing(self._folder):
            self._content.flush()
            os.fsync(self._content.fileno())
            self._content.close()
            with (self._made / _META).open("w", encoding="ascii") as file:
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
        found = (_read(path) for path in prepare(folder))
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

    def all(self) -> list[StoredFile]:
        """The oldest first."""
        return sorted(self._files.values(), key=lambda file: (file.created, file.id))

    def delete(self, identity: str) -> None:
        """Raises as ``get``; OutOfMemoryError or RequestError where the disk refuses."""
        folder = self.folder / self.get(identity).id
        if self._files.pop(identity, None) is not None:  # else another request was faster
            with writing(folder):
                remove(folder)


def _read(folder: Path) -> StoredFile | None:
    """The file in a folder. One whose ``meta.json`` is damaged keeps its content, and loses its
    name."""
    content = folder / _CONTENT
    if not (_ID.fullmatch(folder.name) and content.is_file()):
        logger.warning("%s is no file of this server; it is left alone", folder)
        return None
    size = content.stat().st_size
    try:
        said = json.loads((folder / _META).read_text(encoding="ascii"))
        stored = StoredFile(
            folder.name, str(said["filename"]), str(said["purpose"]), size, float(said["created"])
        )
        if stored.bytes != said["bytes"]:
            logger.warning("%s has %d bytes, and had %s", content, size, said["bytes"])
        return stored
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("%s is damaged (%s): the file has lost its name", folder / _META, error)
        created = content.stat().st_mtime
        return StoredFile(folder.name, f"{folder.name}.jsonl", INPUT, size, created)
