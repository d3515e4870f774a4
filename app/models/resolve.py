"""From MODEL on the command line to a loaded engine, and to an identity that survives renaming."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.adapters import AdapterFile
from app.options import ModelOptions
from runtimes.errors import RequestError
from runtimes.machine.state_file import change_state, load_state
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings, SchedulerSettings

if TYPE_CHECKING:
    from runtimes.worker.engine import WorkerEngine
    from runtimes.worker.process import Placement
    from runtimes.worker.recovery import DeathLimit


def model_file(model: str, options: ModelOptions) -> ModelFile:
    """What MODEL means, described without loading it: a path, or a name in the library. Raises
    ModelError or RequestError."""
    from app.models.library import locate
    from quantize.manifest import NAME
    from quantize.resolve import format_of, resolve

    if options.recipe is not None and options.file is not None:
        raise RequestError("--recipe and --file both pick a file; give one of them")
    model = locate(model)
    picks = options.recipe is not None or options.file is not None
    path = Path(model)
    if picks and format_of(path) and not (path / NAME).is_file():
        raise RequestError(
            f"--recipe and --file pick from a folder of several files; {model} is one model"
        )
    return read_model(resolve(model, recipe=options.recipe, file=options.file))


def load_engine(
    model: ModelFile,
    settings: RunnerSettings,
    scheduling: SchedulerSettings | None = None,
    *,
    adapters: Sequence[AdapterFile] = (),
    begun: Callable[[WorkerEngine], None] | None = None,
    place: Placement | None = None,
    deaths: DeathLimit | None = None,
) -> WorkerEngine:
    """Load ``model`` in a worker process, so that a native crash does not end this one, and then
    ``adapters``, which every process that takes its place has too.

    ``begun`` is given the engine before it has loaded, for another thread to close; the process
    runs at ``place`` and is started again within ``deaths``.
    INGOT_STEP_LIMIT_S is how many seconds a step may take before the worker counts as hung. Raises
    ModelError, RuntimeMissingError, OutOfMemoryError, or RequestError for a bad limit. Ctrl-C ends
    the wait (KeyboardInterrupt) at once.
    """
    from runtimes.worker.engine import WorkerEngine

    engine = WorkerEngine.load(
        model.path,
        settings,
        scheduling,
        step_limit_s=_step_limit(),
        begun=begun,
        place=place,
        deaths=deaths,
    )
    try:
        for one in adapters:
            engine.load_adapter(one.name, one.path)
    except BaseException:
        engine.close()
        raise
    note_loaded(model.path)
    return engine


def _step_limit() -> float:
    from runtimes.worker.engine import STEP_LIMIT, STEP_LIMIT_S

    text = os.environ.get(STEP_LIMIT)
    try:
        limit = float(text) if text else STEP_LIMIT_S
    except ValueError:
        limit = 0.0
    if not 0 < limit < math.inf:
        raise RequestError(f"{STEP_LIMIT} must be seconds above 0, not {text!r}")
    return limit


# What was used as MODEL lately, so that a picker can offer it again

_RECENT = "recent"
_AT_MOST = 20


def note_used(model: str | Path) -> None:
    """Put ``model`` first, if it is on disk; a name in the library is listed anyway."""
    path = Path(model)
    if not path.exists():
        return
    absolute = str(path.resolve())
    if _recent()[:1] != [absolute]:
        change_state(_RECENT, lambda kept: {"models": _first(absolute, _models(kept))})


def _first(model: str, known: list[str]) -> list[str]:
    return [model, *(text for text in known if text != model)][:_AT_MOST]


def note_loaded(file: Path) -> None:
    """Remember a file that was loaded, or the folder of files that it belongs to."""
    from app.models.library import library_dir
    from quantize.manifest import NAME

    if not file.resolve().is_relative_to(library_dir().resolve()):
        note_used(file.parent if (file.parent / NAME).is_file() else file)


def recently_used() -> list[Path]:
    """Those that are still there, the latest first."""
    # A text that is no name of a file is none that is there: Path.exists raises for it.
    return [Path(text) for text in _recent() if os.path.exists(text)]


def _recent() -> list[str]:
    return _models(load_state(_RECENT))


def _models(kept: Mapping[str, object]) -> list[str]:
    models = kept.get("models")
    return [str(text) for text in models] if isinstance(models, list) else []
