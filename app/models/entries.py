"""One model file as pickers show it: its name, what loads it, what is known of it; and in words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from app.figures import rate
from app.options import ModelOptions
from quantize.disk import human
from quantize.manifest import Fidelity, FileSpeeds, Quality, TokenParity
from quantize.recipes import gguf_bits
from quantize.report.facts import is_steady
from runtimes.errors import ModelError
from runtimes.machine.hardware import memory_now
from runtimes.models.gguf import read_parts
from runtimes.models.memory import DEFAULT_CONTEXT, estimate
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.planner.plan import Figures
from runtimes.settings import RunnerSettings


class Origin(StrEnum):
    """Where a file was found."""

    LIBRARY = "library"  # pulled from the hub
    BUILT = "built"  # in a folder that `quantize` wrote
    FILE = "file"  # by itself


@dataclass(frozen=True, slots=True)
class PlannedSpeed:
    """What `ingot plan` measured here."""

    figures: Figures
    made: float  # seconds since 1970
    chosen: bool  # whether the plan took this file


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A file to choose. Figures are None where nobody measured them."""

    model: str  # what loads it, with ``options``, as on the command line
    name: str
    recipe: str  # what the file is called: the recipe of `quantize`, or the type in its name
    origin: Origin
    path: Path
    format: str | None = None
    bits: int | None = None  # the size class
    bytes: int | None = None
    picked: str | None = None
    # From the manifest, so from the machine that built the file.
    quality: Quality | None = None
    fidelity: Fidelity | None = None
    parity: TokenParity | None = None
    speed: FileSpeeds | None = None
    notes: tuple[str, ...] = ()
    measured: PlannedSpeed | None = None  # on this machine
    broken: str | None = None
    bits_per_weight: float | None = None  # what a file that `quantize` built stores

    @property
    def label(self) -> str:
        """What people read: "pebble · q4_k_m"."""
        return f"{self.name} · {self.recipe}" if self.recipe else self.name

    @property
    def key(self) -> str:
        """Tells entries apart."""
        return f"{self.model}\0{self.picked or ''}"

    @property
    def options(self) -> ModelOptions:
        """What goes with ``model``."""
        return ModelOptions(recipe=self.picked)

    @property
    def decode_tps(self) -> float | None:
        """Tokens a second of one row: measured here, or else where the file was built."""
        if self.measured is not None and 1 in self.measured.figures.decode_tps:
            return self.measured.figures.decode_tps[1]
        return self.speed.decode_tps_1 if self.speed else None

    def matches(self, words: Sequence[str]) -> bool:
        """Whether all of ``words`` are in what describes it, capitals aside."""
        bits = f"{self.bits}-bit" if self.bits else ""
        parts = (self.name, self.recipe, self.format, self.origin, self.model, bits)
        text = " ".join(part for part in parts if part).lower()
        return all(word.lower() in text for word in words)


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


def fit(entry: ModelEntry, free: int | None = None) -> Fit:
    """What ``entry`` needs, against ``free`` bytes (None: what is free now).

    Reading the header of a GGUF file with a large vocabulary takes up to half a second the first
    time. Raises ModelError for a file that cannot be read.
    """
    try:
        file = _header(entry.path, entry.path.stat().st_mtime_ns)
    except OSError as error:
        raise ModelError(f"{entry.path} cannot be read: {error.strerror or error}") from error
    context = min(DEFAULT_CONTEXT, file.context_length)
    needs = estimate(file, RunnerSettings(slots=1)).total
    return Fit(file, context, needs, memory_now()[1] if free is None else free)


@lru_cache(maxsize=256)
def _header(path: Path, changed: int) -> ModelFile:
    """``changed`` makes a file that was replaced another one."""
    return read_model(path)


# In words

_ORIGINS = {
    Origin.LIBRARY: "pulled from the hub",
    Origin.BUILT: "built by quantize",
    Origin.FILE: "a file by itself",
}


def type_of(entry: ModelEntry) -> str:
    """Such as "gguf 6.2 bits", a weight; "gguf 4-bit" after its name where that is not known."""
    bits = f"{entry.bits}-bit" if entry.bits else ""
    if entry.bits_per_weight is not None:
        bits = f"{entry.bits_per_weight:.1f} bits"
    return " ".join(part for part in (entry.format or "", bits) if part) or "?"


def size_of(entry: ModelEntry) -> str:
    """Such as "4.7 MB"."""
    return human(entry.bytes) if entry.bytes is not None else "?"


def speed_of(entry: ModelEntry) -> str:
    """Decode of one row in tokens a second; empty where nobody has measured it."""
    return "" if entry.decode_tps is None else rate(entry.decode_tps).removesuffix(" tok/s")


def state_of(entry: ModelEntry, fit: Fit | None) -> str:
    """Whether it can be loaded: "fits", "too big", "broken", or empty while that is not known."""
    if entry.broken:
        return "broken"
    if fit is None:
        return ""
    return "fits" if fit.fits else "too big"


def details(entry: ModelEntry, fit: Fit | None) -> list[str]:
    """Lines about one file: what it is, whether it can be used, its speed, its quality, notes."""
    lines = [f"{type_of(entry)} · {size_of(entry)} · {_ORIGINS[entry.origin]}", str(entry.path)]
    if entry.broken:
        return [*lines, f"Cannot be used: {entry.broken}"]
    if fit is not None:
        lines.append(
            f"Memory: needs {human(fit.needs)} with {fit.context:,} tokens of context, "
            f"{human(fit.free)} are free: {'fits' if fit.fits else 'does not fit'} "
            f"(the model knows up to {fit.file.context_length:,})"
        )
    return [*lines, _speed(entry), _quality(entry), *(f"Note: {note}" for note in entry.notes)]


def _speed(entry: ModelEntry) -> str:
    said = []
    if entry.measured is not None:
        figures = entry.measured.figures
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.measured.made))
        chosen = ", its choice" if entry.measured.chosen else ""
        said.append(
            f"{rate(figures.decode_tps[min(figures.decode_tps)])} decode,"
            f" {rate(figures.prefill_tps)} prefill here (ingot plan, {day}{chosen})"
        )
    if entry.speed is not None:
        built = entry.speed
        said.append(
            f"{rate(built.decode_tps_1)} decode, {rate(built.prefill_tps)} prefill,"
            f" {rate(built.decode_tps_16)} with 16 rows where it was built"
            f"{' (a busy machine)' if built.ranges and not is_steady(built) else ''}"
        )
    return "Speed: " + ("; ".join(said) or "not measured; `ingot plan` does it")


def _quality(entry: ModelEntry) -> str:
    said = []
    if entry.quality is not None:
        said.append(
            f"{entry.quality.task_accuracy:.1%} of {entry.quality.questions:,} answers right"
        )
    if entry.fidelity is not None:
        found = entry.fidelity
        said.append(f"the original's likeliest token at {found.same_top:.1%} of positions")
        said.append(f"KL {found.kl_mean:.4f}")
        said.append(f"perplexity {found.perplexity.value:,.4g}")
    if entry.parity is not None:
        differ = entry.parity.differences
        equal = f"{differ:,} of {entry.parity.lines:,} lines differ" if differ else "equal"
        said.append(f"token ids {equal}")
    return "Quality: " + ("; ".join(said) or "not measured")


_LEAST_KL = 0.0001  # of what four places can say


# What a file stores for a weight, and how far that has moved it from the original.


@dataclass(frozen=True, slots=True)
class FileQuality:
    """Of one file; None where nobody knows."""

    bytes: int | None = None
    bits: float | None = None  # a weight, scales included, as the file really stores them
    kl: float | None = None  # nats from the original, the mean over the tokens of a text
    same_top: float | None = None  # the share of tokens (0 to 1) with the original's likeliest one
    accuracy: float | None = None  # the share of right answers on tasks (0 to 1)


def file_quality(entry: ModelEntry) -> FileQuality:
    """What the manifest beside the file has measured of this very file, else what its header says.

    Reading the header of a GGUF file with a large vocabulary takes up to half a second.
    """
    if entry.broken:  # what the manifest says is of another file than this one is now
        entry = replace(entry, bytes=None, fidelity=None, quality=None, bits_per_weight=None)
    fidelity, quality, bits = entry.fidelity, entry.quality, entry.bits_per_weight
    if bits is None and entry.format == "gguf":
        try:
            bits = _bits(entry.path, entry.path.stat().st_mtime_ns)
        except (ModelError, OSError):  # damaged, or without tensors
            bits = None
    return FileQuality(
        bytes=entry.bytes,
        bits=bits,
        kl=fidelity.kl_mean if fidelity else None,
        same_top=fidelity.same_top if fidelity else None,
        accuracy=quality.task_accuracy if quality else None,
    )


def with_bits(entry: ModelEntry) -> ModelEntry:
    """``entry`` with what its file stores for a weight; see ``file_quality``."""
    return replace(entry, bits_per_weight=file_quality(entry).bits)


@lru_cache(maxsize=256)
def _bits(path: Path, changed: int) -> float:
    """``changed`` makes a file that was replaced another one."""
    return gguf_bits(read_parts(path)[0])


def quality_text(found: FileQuality) -> str:
    """Such as "4.6 bits · KL 0.041"; what is not known is left out."""
    parts = [f"{found.bits:.1f} bits"] if found.bits is not None else []
    if found.kl is not None:
        parts.append(kl_text(found.kl))
    elif found.accuracy is not None:
        parts.append(f"{found.accuracy:.0%} of tasks")
    return " · ".join(parts)


def kl_text(kl: float) -> str:
    """Such as "KL 0.041": nats, with two digits that count."""
    if kl < _LEAST_KL:
        return f"KL <{_LEAST_KL}"
    return f"KL {kl:.3f}" if kl >= 0.01 else f"KL {kl:.4f}"


def quality_of(entry: ModelEntry) -> str:
    """A picker's cell: how far from the original, else the share of right answers on tasks."""
    if entry.fidelity is not None:
        return kl_text(entry.fidelity.kl_mean)
    return f"{entry.quality.task_accuracy:.1%}" if entry.quality is not None else ""


def quality_order(entry: ModelEntry) -> tuple[int, float]:
    """Sorts the nearest to the original first, then by tasks, then what was not measured."""
    if entry.fidelity is not None:
        return 0, entry.fidelity.kl_mean
    return (1, -entry.quality.task_accuracy) if entry.quality is not None else (2, 0.0)
