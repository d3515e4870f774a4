"""What tells two models apart, whatever their files are called."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile

# Weights of gigabytes are not read whole to tell two files apart: the start (a GGUF header with
# tokenizer and template), the end, and evenly spaced blocks between them are.
_WHOLE = 32 * 2**20
_EDGE = 4 * 2**20
_BLOCK = 64 * 2**10
_BLOCKS = 64


def fingerprint(model: ModelFile) -> str:
    """A hash of the model's contents. Names, times and places do not matter.

    Raises ModelError when a file cannot be read.
    """
    path = model.path
    files = [path, *model.further]
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    try:
        for file in files:
            inner = file.relative_to(path).as_posix() if path.is_dir() else ""
            digest.update(struct.pack("<Q", file.stat().st_size) + inner.encode() + b"\0")
            _update(digest, file)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _update(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _WHOLE:
            digest.update(file.read())
            return
        digest.update(file.read(_EDGE))
        step = (size - 2 * _EDGE) // _BLOCKS
        for i in range(_BLOCKS):
            file.seek(_EDGE + i * step)
            digest.update(file.read(min(_BLOCK, step)))
        file.seek(size - _EDGE)
        digest.update(file.read())
