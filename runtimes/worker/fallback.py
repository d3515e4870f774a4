"""Settings that spare what a worker process has died of, and the state file that keeps them.

Limits hold for a model's contents, the native library's files and the processor together: a rebuilt
library, another model or another machine starts without them.
"""

import hashlib
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.machine.cpu import cpu_identity
from runtimes.machine.installed import find_installed
from runtimes.machine.state_file import load_state, save_entry, save_state
from runtimes.models.memory import DEFAULT_CONTEXT
from runtimes.models.modelfile import ModelFile, fingerprint
from runtimes.models.registry import read_model
from runtimes.settings import RunnerSettings

STATE = "worker"  # the state file
FORGET = "python -P -m runtimes.worker --forget"

_REVISION = 2  # of what counts as a crash: limits that an older version found do not hold
_KEPT = 32
_TOKENS_S = 7 * 24 * 3600.0  # how much memory was free then says little about today


@dataclass(frozen=True, slots=True)
class SettingsLimits:
    """What settings must not exceed."""

    extra_buffers: bool = True
    gpu: bool = True
    kv_tokens: int | None = None  # over all slots
    draft: bool = True

    def apply(self, settings: RunnerSettings, most_context: int) -> RunnerSettings:
        """Settings within the limits: fewer slots first, then a smaller context.

        ``most_context`` is the context that the model was made for.
        """
        settings = replace(
            settings,
            extra_buffers=settings.extra_buffers and self.extra_buffers,
            gpu_layers=settings.gpu_layers if self.gpu else 0,
            draft=settings.draft if self.draft else None,
            device=settings.device if self.gpu else "cpu",
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
        """The limits in words; empty without any."""
        parts = []
        if not self.gpu:
            parts.append("without the GPU")
        if not self.extra_buffers:
            parts.append("without special kernels, slower")
        if not self.draft:
            parts.append("without a draft")
        if self.kv_tokens is not None:
            parts.append(f"with at most {self.kv_tokens:,} tokens in all slots together")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a model: limits with their reason, and a crash that was seen only once."""

    bounds: SettingsLimits = SettingsLimits()  # called so in the state file
    reason: str = ""
    suspect: str = ""
    suspect_at: float = 0.0  # seconds since the epoch


class LimitsFile:
    """The record of one model file; reading the model for its identity waits until it is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def model(self) -> ModelFile | None:
        """What the file says of itself; None when it cannot be read."""
        try:
            return read_model(self._path)
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
        """What is kept of this model; nothing when it was never in trouble."""
        entries = load_state(STATE)
        return _from_json(entries.get(self._key)) if entries and self._key else Record()

    def write(self, record: Record) -> None:
        """Replace the record; an empty one is dropped."""
        if self._key is None:
            return
        name = {"model": str(self._path), "at": time.strftime("%Y-%m-%d %H:%M")}
        value = None if record == Record() else {**asdict(record), **name}
        save_entry(STATE, self._key, value, _KEPT)


def _from_json(value: Any) -> Record:
    """A record without what has become old; an empty one when it is none."""
    try:
        limits = SettingsLimits(**value["bounds"])
        suspect_at = float(value["suspect_at"])
        if time.time() > suspect_at + _TOKENS_S:
            limits = replace(limits, kv_tokens=None, draft=True)
        return Record(limits, str(value["reason"]), str(value["suspect"]), suspect_at)
    except (KeyError, TypeError, ValueError):
        return Record()


def limit_lines() -> list[str]:
    """A line for each model that is loaded with limits."""
    lines = []
    for value in load_state(STATE).values():
        record = _from_json(value)
        if record.bounds != SettingsLimits():
            name = Path(str(value.get("model"))).name
            lines.append(f"{name}: {record.bounds.describe()} ({record.reason})")
    return lines


def forget() -> None:
    """Drop all limits."""
    save_state(STATE, {})
