"""From MODEL on the command line to a loaded engine, and to an identity that survives renaming."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from app.options import ModelOptions
from runtimes.errors import RequestError
from runtimes.fingerprint import fingerprint as fingerprint
from runtimes.modelfile import ModelFile
from runtimes.settings import RunnerSettings

if TYPE_CHECKING:
    from runtimes.engine import Engine


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
