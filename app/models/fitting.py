"""Whether a file fits into the memory that is free now: known without loading it."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.models.entries import Entry
from runtimes.errors import ModelError
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import DEFAULT_CONTEXT, estimate
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes that one conversation of ``context`` tokens needs, and bytes that are free."""

    file: ModelFile
    context: int
    needs: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether it can be loaded without swapping."""
        return self.needs <= self.free


def fit(entry: Entry, free: int | None = None) -> Fit:
    """What ``entry`` needs, against ``free`` bytes (None: what is free now).

    Reading the header of a GGUF file with a large vocabulary takes up to half a second the first
    time. Raises ModelError for a file that cannot be read.
    """
    path = entry.path
    try:
        file = _described(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    context = min(DEFAULT_CONTEXT, file.context_length)
    if free is None:
        free = memory_now()[1]
    return Fit(file, context, estimate(file, RunnerSettings(slots=1)).total, free)


@lru_cache(maxsize=256)
def _described(path: Path, changed: int) -> ModelFile:
    """``changed`` makes a file that was replaced another one."""
    return ModelFile.read(path)
