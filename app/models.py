"""From MODEL on the command line to a loaded engine, and to an identity that survives renaming."""

from __future__ import annotations

import hashlib
import os
import queue
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from app.options import ModelOptions
from runtimes.errors import ModelError, RequestError
from runtimes.modelfile import ModelFile
from runtimes.settings import RunnerSettings

if TYPE_CHECKING:
    from runtimes.engine import Engine

# Weights of gigabytes are not read whole to tell two files apart: the start (a GGUF header with
# tokenizer and template), the end, and evenly spaced blocks between them are.
_WHOLE = 32 * 2**20
_EDGE = 4 * 2**20
_BLOCK = 64 * 2**10
_BLOCKS = 64


def model_file(model: str, options: ModelOptions) -> ModelFile:
    """What MODEL means, described without loading it. Raises ModelError or RequestError."""
    from quantize.manifest import NAME
    from quantize.resolve import resolve

    if options.recipe is not None and options.file is not None:
        raise RequestError("--recipe and --file both pick a file; give one of them")
    picks = options.recipe is not None or options.file is not None
    path = Path(model)
    if picks and path.exists() and not (path.is_dir() and (path / NAME).is_file()):
        raise RequestError(
            f"--recipe and --file pick from a folder that `quantize` wrote; {model} is not one"
        )
    return ModelFile.read(resolve(model, recipe=options.recipe, file=options.file))


def fingerprint(model: ModelFile) -> str:
    """A hash of the model's contents. Names, times and places do not matter.

    Raises ModelError when a file cannot be read.
    """
    path = model.path
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
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


def load_engine(model: ModelFile, settings: RunnerSettings) -> Engine:
    """Load ``model``. Raises ModelError, RuntimeMissingError or OutOfMemoryError.

    The native libraries load for seconds without looking at signals, so they do it on a thread
    beside, and Ctrl-C ends the wait (KeyboardInterrupt) at once.
    """
    from runtimes.engine import Engine

    outcome: queue.SimpleQueue[Engine | BaseException] = queue.SimpleQueue()

    def load() -> None:
        try:
            outcome.put(Engine.load(model.path, settings))
        except BaseException as error:
            outcome.put(error)

    threading.Thread(target=load, name="ingot-load", daemon=True).start()
    loaded = outcome.get()
    if isinstance(loaded, BaseException):
        raise loaded
    return loaded
