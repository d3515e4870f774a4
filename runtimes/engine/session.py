"""A conversation's keys and values on disk, so that it continues without computing them again.

A session file is one line of JSON in UTF-8, ended by a newline, then the payload, which is what
``KvSlots.save`` gave::

    {"ingot_session": 3, "model": ..., "runtime": ..., "library": ..., "kv_type": ...,
     "tokens": [...], "crc32": ...}

``ingot_session`` is the version of this layout and of the payloads', ``model`` the fingerprint of
the model file (``runtimes.models.modelfile``) or of it and an adapter's, ``library`` the version of
the runtime's library, ``tokens`` the ids that the payload holds the keys and values of, ``crc32``
the checksum (zlib's) of the fields before it and the payload. The tokens are the text of the
conversation: the file is as private as that, and is made readable by its owner only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.machine.installed import find_installed
from runtimes.machine.state_file import replacement
from runtimes.models.modelfile import ModelFile, fingerprint, reading

if TYPE_CHECKING:
    from runtimes.runner import SavedKv

_VERSION = 3
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_KEY = "ingot_session"
_MOST_HEADER_BYTES = 64 * 2**20  # some 8 million tokens; what is longer is no header

# Fields of a session that say what its payload is of: model, runtime, library and kv_type.
SessionHeader = dict[str, str]


def header_of(model: ModelFile, kv_type: str, adapter: str) -> SessionHeader:
    """That of a session of this machine's library; ``adapter`` is the checksum of the file of one,
    with which the model is another one, or nothing."""
    installed, known = find_installed(model.runtime), fingerprint(model)
    return {
        "model": hashlib.sha256(f"{known}{adapter}".encode()).hexdigest() if adapter else known,
        "runtime": model.runtime,
        "library": installed.version if installed else "unknown",
        "kv_type": f"{kv_type}, rope {model.rope}" if model.rope else kv_type,
    }


def write_session(path: Path, header: SessionHeader, tokens: list[int], data: SavedKv) -> None:
    """Write the file whole or not at all: an older one at ``path`` stays until this one is safe.

    Raises ModelError when the folder cannot be written to, OutOfMemoryError when the disk is full.
    """
    fields = {_KEY: _VERSION, **header, "tokens": tokens}
    line = json.dumps({**fields, "crc32": _checksum(fields, data)})
    try:
        with replacement(path) as file:
            file.write(line.encode() + b"\n")
            file.write(data)
    except OSError as error:
        message = f"the session cannot be written to {path}: {error.strerror or error}"
        if error.errno in _NO_ROOM:
            raise OutOfMemoryError(f"{message} ({len(data):,} bytes)") from error
        raise ModelError(message) from error


def read_session(path: Path, expected: SessionHeader) -> tuple[list[int], bytes]:
    """The tokens and payload at ``path``; ``expected`` says of which model and runtime.

    Raises ModelError, saying what to do, for a file that is
    missing, damaged, of another Ingot's format, or of another model, runtime or type of keys and
    values.
    """
    with reading(path), path.open("rb") as file:
        fields = _fields(path, file)
        _require_match(path, fields, expected)
        data = file.read()
    crc = fields.pop("crc32", None)
    if crc != _checksum(fields, data):
        raise ModelError(f"{path} is damaged: its checksum is another. Start the conversation anew")
    return _tokens(path, fields), data


def session_tokens(path: Path) -> list[int]:
    """The tokens that a file says it holds; nothing else of it is checked. Raises ModelError."""
    with reading(path), path.open("rb") as file:
        return _tokens(path, _fields(path, file))


def _tokens(path: Path, fields: dict[str, Any]) -> list[int]:
    tokens = fields.get("tokens")
    if not isinstance(tokens, list) or not all(
        type(one) is int and 0 <= one < 2**31 for one in tokens
    ):
        raise ModelError(f"{path} is damaged: it has no tokens")
    return tokens


def _checksum(fields: dict[str, Any], data: SavedKv) -> int:
    return zlib.crc32(data, zlib.crc32(json.dumps(fields).encode()))


def _fields(path: Path, file: BinaryIO) -> dict[str, Any]:
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


def _require_match(path: Path, fields: dict[str, Any], expected: SessionHeader) -> None:
    for key, what, advice in (
        ("model", "model file", "the file that it was saved with"),
        ("runtime", "runtime", fields.get("runtime")),
        ("library", "version of the library", f"version {fields.get('library')}"),
        ("kv_type", "type of keys and values", f"kv_type {fields.get('kv_type')}"),
    ):
        found, here = str(fields.get(key)), expected[key]
        if found != here:  # a fingerprint is shown by its first digits
            raise ModelError(
                f"{path} is of another {what} ({found[:16]}, here {here[:16]}). Load it with "
                f"{advice}, or start the conversation anew"
            )
