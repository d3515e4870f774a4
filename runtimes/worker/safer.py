"""Settings that spare what a worker process has died of, and what is remembered of them.

Bounds are remembered for a model's contents, the native library's files and the processor together:
a rebuilt library, another model or another machine starts without them.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.machine.cpu import cpu_identity
from runtimes.machine.installed import find_installed
from runtimes.machine.state_file import recall, remember
from runtimes.models.fingerprint import fingerprint
from runtimes.models.memory import DEFAULT_CONTEXT
from runtimes.models.modelfile import ModelFile
from runtimes.settings import RunnerSettings
from runtimes.worker.death import Cause

MEMORY = "worker"
_REVISION = 2  # of what counts as a crash: bounds that an older version found do not hold
_REMEMBERED_AT_MOST = 32
_MEMORY_S = 7 * 24 * 3600.0  # how much was free then says little about today
_LEAST_TOKENS = 256  # of keys and values; below this a model is no use

FORGET = "python -m runtimes.worker --forget"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What settings must not exceed. ``kv_tokens`` is over all slots."""

    extra_buffers: bool = True
    gpu: bool = True
    kv_tokens: int | None = None

    def apply(self, settings: RunnerSettings, most_context: int) -> RunnerSettings:
        """Settings within the bounds: fewer slots first, then a smaller context.

        ``most_context`` is the context that the model was made for.
        """
        settings = replace(
            settings,
            extra_buffers=settings.extra_buffers and self.extra_buffers,
            gpu_layers=settings.gpu_layers if self.gpu else 0,
            # An experimental part of llama.cpp, of no use without a GPU.
            device_sampling=settings.device_sampling and self.gpu and self.extra_buffers,
        )
        if self.kv_tokens is None:
            return settings
        context = min(settings.context or DEFAULT_CONTEXT, most_context)
        slots = max(1, min(settings.slots, self.kv_tokens // context))
        return replace(
            settings,
            slots=slots,
            context=min(context, self.kv_tokens // slots),
            kv_tokens=settings.kv_tokens and min(settings.kv_tokens, self.kv_tokens),
        )

    def describe(self) -> str:
        """The bounds in words; empty without any."""
        parts = []
        if not self.gpu:
            parts.append("without the GPU")
        if not self.extra_buffers:
            parts.append("without llama.cpp's special kernels, slower")
        if self.kv_tokens is not None:
            parts.append(f"with at most {self.kv_tokens:,} tokens in all slots together")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Situation:
    """What ran when the process died. ``gpu`` whether layers may have been on one,
    ``extra_buffers`` whether special kernels may have run; ``context`` is what one request may
    hold, ``kv_tokens`` all slots together. Other kernels would give ``reproducible`` answers other
    last digits."""

    gpu: bool
    extra_buffers: bool
    context: int
    kv_tokens: int
    reproducible: bool = False


def safer(bounds: Bounds, cause: Cause, situation: Situation) -> Bounds | None:
    """The next bounds to try; None when there is nothing left that could help."""
    if cause in (Cause.MEMORY, Cause.SCARCE):
        half = situation.kv_tokens // 2
        # Little free memory may not have been the reason: that must not cut requests short.
        least = situation.context if cause is Cause.SCARCE else _LEAST_TOKENS
        return replace(bounds, kv_tokens=half) if half >= least else None
    if situation.reproducible:
        return None
    # The processor, and so its special kernels, are to blame for an instruction it does not have.
    if situation.gpu and cause is not Cause.ILLEGAL:
        return replace(bounds, gpu=False)
    if situation.extra_buffers:
        return replace(bounds, extra_buffers=False)
    return None


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered: bounds with their reason, and a crash that has been seen only once."""

    bounds: Bounds = Bounds()
    reason: str = ""
    suspect: str = ""
    suspect_at: float = 0.0  # seconds since the epoch


class Memory:
    """The record of one model file; reading the model for its identity waits until it is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def model(self) -> ModelFile | None:
        """What the file says of itself; None when it cannot be read."""
        try:
            return ModelFile.read(self._path)
        except ModelError:
            return None

    @cached_property
    def _key(self) -> str | None:
        try:
            if self.model is None or (installed := find_installed(self.model.runtime)) is None:
                return None
            library = (installed.version, installed.identity, cpu_identity())
            parts = (fingerprint(self.model), *library, _REVISION)
        except ModelError:
            return None
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]

    def read(self) -> Record:
        """What is remembered of this model; nothing when it was never in trouble."""
        known = recall(MEMORY)
        return _from_json(known.get(self._key)) if known and self._key else Record()

    def write(self, record: Record) -> None:
        """Replace the record; an empty one is dropped."""
        if self._key is None:
            return
        known = recall(MEMORY)
        known.pop(self._key, None)
        if record != Record():
            known = dict(list(known.items())[-(_REMEMBERED_AT_MOST - 1) :])
            name = {"model": str(self._path), "at": time.strftime("%Y-%m-%d %H:%M")}
            known[self._key] = {**asdict(record), **name}
        remember(MEMORY, known)


def _from_json(value: Any) -> Record:
    """A remembered record, without what has become old; an empty one when it is none."""
    try:
        bounds = Bounds(**value["bounds"])
        suspect_at = float(value["suspect_at"])
        if time.time() > suspect_at + _MEMORY_S:
            bounds = replace(bounds, kv_tokens=None)
        return Record(bounds, str(value["reason"]), str(value["suspect"]), suspect_at)
    except (KeyError, TypeError, ValueError):
        return Record()


def remembered_lines() -> list[str]:
    """A line for each model that is loaded with bounds."""
    lines = []
    for value in recall(MEMORY).values():
        record = _from_json(value)
        if record.bounds != Bounds():
            name = Path(str(value.get("model"))).name
            lines.append(f"{name}: {record.bounds.describe()} ({record.reason})")
    return lines


def forget() -> None:
    """Forget every bound."""
    remember(MEMORY, {})
