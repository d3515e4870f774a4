"""A conversation's keys and values on disk, so that it continues without computing them again.

A session file is one line of JSON in UTF-8, ended by a newline, then the payload, which is what
``KvSlots.save`` gave::

    {"ingot_session": 1, "model": ..., "runtime": ..., "kv_type": ..., "tokens": [...],
     "bytes": ..., "crc32": ...}

``ingot_session`` is the version of this layout, ``model`` the fingerprint of the model file
(``runtimes.models.fingerprint``), ``tokens`` the ids that the payload holds the keys and values of,
``bytes`` its size and ``crc32`` its checksum (zlib's). The tokens are the text of the conversation:
the file is as private as that, and is made readable by its owner only.
"""

import errno
import json
import os
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from runtimes.errors import ModelError, OutOfMemoryError

_VERSION = 1
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_KEY = "ingot_session"
_MOST_HEADER_BYTES = 64 * 2**20  # some 8 million tokens; what is longer is no header


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """What a session's payload is of. ``model`` is the file's fingerprint."""

    model: str
    runtime: str
    kv_type: str
    tokens: tuple[int, ...]


def write_session(path: Path, header: SessionHeader, data: bytes) -> None:
    """Write the file whole or not at all: an older one at ``path`` stays until this one is safe.

    Raises ModelError when the folder cannot be written to, OutOfMemoryError when the disk is full.
    """
    line = json.dumps(
        {
            _KEY: _VERSION,
            "model": header.model,
            "runtime": header.runtime,
            "kv_type": header.kv_type,
            "tokens": list(header.tokens),
            "bytes": len(data),
            "crc32": zlib.crc32(data),
        }
    )
    part: Path | None = None
    try:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        part = Path(name)
        with os.fdopen(number, "wb") as file:
            file.write(line.encode() + b"\n")
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        part = None
    except OSError as error:
        message = f"the session cannot be written to {path}: {error.strerror or error}"
        if error.errno in _NO_ROOM:
            raise OutOfMemoryError(f"{message} ({len(data):,} bytes)") from error
        raise ModelError(message) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def read_session(path: Path, expected: SessionHeader) -> tuple[SessionHeader, bytes]:
    """The header and payload at ``path``; ``expected`` says of which model and runtime.

    The expected tokens are not looked at. Raises ModelError, saying what to do, for a file that is
    missing, damaged, of a newer Ingot, or of another model, runtime or type of keys and values.
    """
    try:
        with path.open("rb") as file:
            fields = _header(path, file)
            header = _matching(path, fields, expected)
            data = file.read()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) != fields.get("bytes") or zlib.crc32(data) != fields.get("crc32"):
        raise ModelError(
            f"{path} is damaged: it holds {len(data):,} bytes of keys and values where "
            f"{fields.get('bytes')} with another checksum were saved. Start the conversation anew"
        )
    return header, data


def _header(path: Path, file: BinaryIO) -> dict[str, Any]:
    line = file.readline(_MOST_HEADER_BYTES)
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or _KEY not in fields:
        raise ModelError(f"{path} is not a saved session, or its beginning is damaged")
    if fields[_KEY] != _VERSION:
        raise ModelError(
            f"{path} was saved in session format {fields[_KEY]}, this Ingot reads {_VERSION}. "
            "Load it with the Ingot that wrote it, or start the conversation anew"
        )
    return fields


def _matching(path: Path, fields: dict[str, Any], expected: SessionHeader) -> SessionHeader:
    for key, what, advice in (
        ("model", "model file", "Load it with the file that it was saved with"),
        ("runtime", "runtime", f"Load it with {fields.get('runtime')}"),
        (
            "kv_type",
            "type of keys and values",
            f"Load it with kv_type {fields.get('kv_type')}",
        ),
    ):
        if fields.get(key) != getattr(expected, key):
            raise ModelError(
                f"{path} is of another {what} ({_short(fields.get(key))}, here "
                f"{_short(getattr(expected, key))}). {advice}, or start the conversation anew"
            )
    tokens = fields.get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise ModelError(f"{path} is damaged: its tokens are not a list of ids")
    return SessionHeader(expected.model, expected.runtime, expected.kv_type, tuple(tokens))


def _short(value: object) -> str:
    """A fingerprint by its first digits."""
    return str(value)[:16]
