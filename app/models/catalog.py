"""Every model file that can be chosen, and what is known of it, in words too: pulled ones, folders
that `quantize` wrote, loose files.

Fast on purpose: manifests and the library's records are read, the files themselves are not. A file
that cannot be used is listed with the reason.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from app.figures import rate
from app.here import real
from app.models import library
from app.models.library import recently_used
from app.options import ModelOptions
from quantize.cards import Card, known_cards
from quantize.disk import human
from quantize.manifest import NAME as MANIFEST
from quantize.manifest import (
    Allocation,
    Fidelity,
    FileEntry,
    FileSpeeds,
    Quality,
    TokenParity,
    entry_path,
    load_manifest,
)
from quantize.recipes import gguf_bits
from quantize.report.facts import is_steady
from quantize.resolve import format_of, model_files
from runtimes.backend import Backend
from runtimes.errors import IngotError, ModelError
from runtimes.machine.hardware import memory_now
from runtimes.machine.installed import find_installed
from runtimes.models.gguf import named_parts, read_parts
from runtimes.models.memory import DEFAULT_CONTEXT, estimate
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backends, read_model
from runtimes.planner.known import MadePlan, made_plans
from runtimes.planner.plan import Figures
from runtimes.settings import RunnerSettings


class Origin(StrEnum):
    """Place in which a file was found."""

    LIBRARY = "library"  # pulled from the hub
    BUILT = "built"  # in a folder that `quantize` wrote
    FILE = "file"  # by itself


@dataclass(frozen=True, slots=True)
class PlannedSpeed:
    """Figures that `ingot plan` measured here."""

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
    allocation: Allocation | None = None
    measurement: str = ""

    @property
    def label(self) -> str:
        """Name for people, as in "pebble · q4_k_m"."""
        return f"{self.name} · {self.recipe}" if self.recipe else self.name

    @property
    def key(self) -> str:
        """Tells entries apart."""
        return f"{self.model}\0{self.picked or ''}"

    @property
    def options(self) -> ModelOptions:
        """Options that pick the file of ``model``."""
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


def fit(entry: ModelEntry) -> Fit:
    """Compare the memory that ``entry`` needs with what is free now.

    Reading the header of a GGUF file with a large vocabulary takes up to half a second the first
    time. Raises ModelError for a file that cannot be read.
    """
    try:
        file = _header(entry.path, entry.path.stat().st_mtime_ns)
    except OSError as error:
        raise ModelError(f"{entry.path} cannot be read: {error.strerror or error}") from error
    context = min(DEFAULT_CONTEXT, file.context_length)
    needs = estimate(file, RunnerSettings(slots=1)).total
    return Fit(file, context, needs, memory_now()[1])


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
    """Format and bits a weight, as in "gguf 6.2 bits"; "gguf 4-bit", by its name, where they are
    not known."""
    bits = f"{entry.bits}-bit" if entry.bits else ""
    if entry.bits_per_weight is not None:
        bits = f"{entry.bits_per_weight:.1f} bits"
    return " ".join(part for part in (entry.format or "", bits) if part) or "?"


def size_of(entry: ModelEntry) -> str:
    """Size, as in "4.7 MB"."""
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


def with_bits(entry: ModelEntry) -> ModelEntry:
    """``entry`` with what its file stores for a weight, by the manifest or the file's header; of a
    broken one, without what the manifest says of another file than it is now.

    Reading the header of a GGUF file with a large vocabulary takes up to half a second.
    """
    if entry.broken:
        entry = replace(entry, bytes=None, fidelity=None, quality=None, bits_per_weight=None)
    if entry.bits_per_weight is None and entry.format == "gguf":
        with suppress(ModelError, OSError):  # damaged, or without tensors
            bits = _bits(entry.path, entry.path.stat().st_mtime_ns)
            entry = replace(entry, bits_per_weight=bits)
    return entry


@lru_cache(maxsize=256)
def _bits(path: Path, changed: int) -> float:
    """``changed`` makes a file that was replaced another one."""
    return gguf_bits(read_parts(path)[0])


def quality_text(entry: ModelEntry) -> str:
    """Bits and quality, as in "4.6 bits · KL 0.041"; unknown figures are left out. Reads as
    ``with_bits``."""
    entry = with_bits(entry)
    parts = [f"{entry.bits_per_weight:.1f} bits"] if entry.bits_per_weight is not None else []
    if entry.fidelity is not None:
        parts.append(kl_text(entry.fidelity.kl_mean))
    elif entry.quality is not None:
        parts.append(f"{entry.quality.task_accuracy:.0%} of tasks")
    return " · ".join(parts)


def kl_text(kl: float) -> str:
    """KL divergence in nats with two significant digits, as in "KL 0.041"."""
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


# Every file there is

_ROOT = Path(__file__).resolve().parents[2]
_DEMO = Path("assets") / "pebble-built"  # where `make demo` puts it
_BITS = re.compile(r"(?:^|[-_/])(?:UD-)?(?:I?Q|TQ|BF|F|FP|MXFP|NVFP|INT|W)(\d+)", re.IGNORECASE)

# What an entry takes from a manifest as it is.
_LISTED = (
    "format bits bits_per_weight bytes quality fidelity speed notes allocation measurement"
).split()


def catalog(given: Iterable[str | Path] = ()) -> list[ModelEntry]:
    """Everything there is, sorted by name and size, each file once.

    ``given`` are files and folders that were named by the user: they are listed even if they cannot
    be read. Takes milliseconds; damage shows in ``ModelEntry.broken`` and is never raised.
    """
    found: list[ModelEntry] = []
    for path in given:
        found += _at(Path(path)) or [_broken(Path(path), "no model is there")]
    for path in [*recently_used(), _DEMO, _ROOT / _DEMO]:
        found += _at(path)
    for model in library.models():
        found += _pulled(model)
    once: dict[Path, ModelEntry] = {}
    for entry in found:
        once.setdefault(real(entry.path), entry)
    missing: dict[str | None, str | None] = {one.format: _unusable(one) for one in backends()}
    unknown = [e.path for e in once.values() if e.fidelity is None and not e.broken]
    cards, plans = known_cards(unknown), made_plans()
    listed = [
        replace(
            _carded(e, cards.get(e.path)),
            measured=None if e.broken else _measured(path, plans),
            broken=e.broken or missing.get(e.format),
        )
        for path, e in once.items()
    ]
    return sorted(listed, key=lambda e: (e.name.lower(), e.model, e.bytes or 0, e.recipe))


def entry_of(path: Path) -> ModelEntry:
    """Describe one file that can be loaded, wherever it is."""
    found: Iterable[ModelEntry] = _at(path)
    if _in_library(path):
        found = (entry for model in library.models() for entry in _pulled(model))
    return next(_same(found, path), None) or _loose(path)


def _same(found: Iterable[ModelEntry], path: Path) -> Iterator[ModelEntry]:
    return (entry for entry in found if real(entry.path) == real(path))


def _in_library(path: Path) -> bool:
    return real(path).is_relative_to(library.library_dir().resolve())


def _at(path: Path) -> list[ModelEntry]:
    """The models at ``path``; none when there is none."""
    try:
        # One of the files of a folder is listed with all that is known of it.
        if (path.parent / MANIFEST).is_file() and (same := [*_same(_built(path.parent), path)]):
            return same
        if (path / MANIFEST).is_file():
            return _built(path)
        if format_of(path):
            return [_loose(path)]
        return [_loose(file) for file in model_files(path)] if path.is_dir() else []
    except OSError as error:
        return [_broken(path, error.strerror or str(error))]


def _built(folder: Path) -> list[ModelEntry]:
    """The files of a folder that `quantize` wrote."""
    if _in_library(folder):  # whose files are listed by its record
        return []
    try:
        manifest = load_manifest(folder)
    except IngotError as error:
        return [_broken(folder, str(error))]
    name = manifest.model.name
    return [
        _described(
            ModelEntry(str(folder), name, one.recipe, Origin.BUILT, folder, picked=one.recipe), one
        )
        for one in manifest.files
    ]


def _described(base: ModelEntry, listed: FileEntry) -> ModelEntry:
    """``base``, whose ``path`` is the manifest's folder, with what the manifest says of a file."""
    try:
        path, broken = entry_path(base.path, listed), None
    except IngotError as error:
        path, broken = base.path / Path(listed.path).name, str(error)
    return replace(
        base,
        path=path,
        parity=listed.token_parity,
        broken=broken,
        **{name: getattr(listed, name) for name in _LISTED},
    )


def _loose(path: Path) -> ModelEntry:
    """A model by itself, a file or a folder."""
    single = path.is_file()
    files = named_parts(path) if single else [file for file in path.iterdir() if file.is_file()]
    name = path.stem if single else path.name
    return ModelEntry(
        model=str(path),
        name=name,
        recipe="",
        origin=Origin.FILE,
        path=path,
        format=format_of(path),
        bits=bits_of(name),
        bytes=sum(file.stat().st_size for file in files if file.is_file()),
    )


def _pulled(model: library.Model) -> list[ModelEntry]:
    """List the builds that were pulled of one repository."""
    if not model.builds:
        again = f"nothing of it is whole; `ingot pull {model.repo}` gets it again"
        return [ModelEntry(model.repo, model.repo, "", Origin.LIBRARY, model.folder, broken=again)]
    try:
        manifest = load_manifest(model.folder) if (model.folder / MANIFEST).is_file() else None
    except IngotError:
        manifest = None  # the library's own record is enough to load the file
    found = []
    for build in model.builds:
        name = f"{model.repo}:{build.label}"
        base = ModelEntry(name, model.repo, build.label, Origin.LIBRARY, model.folder)
        listed = manifest.entry(build.label) if manifest else None
        if listed is not None:
            base = _described(base, listed)
        again = f"a file is missing or has another size; `ingot pull {name}` gets it again"
        entry = replace(
            base,
            path=model.path(build),
            format=build.kind,
            bits=base.bits or bits_of(build.label),
            bytes=build.size,
            broken=None if model.is_whole(build) else again,
        )
        found.append(entry)
    return found


def _carded(entry: ModelEntry, card: Card | None) -> ModelEntry:
    """``entry`` with what `ingot measure` has found of the file."""
    if card is None:
        return entry
    found = card.entry
    return replace(
        entry,
        fidelity=found.fidelity,
        quality=found.quality,
        parity=found.token_parity,
        speed=entry.speed or found.speed,
        notes=(*entry.notes, *(text.splitlines()[0] for text in card.faults)),
    )


def _broken(path: Path, why: str) -> ModelEntry:
    return ModelEntry(str(path), path.name or str(path), "", Origin.FILE, path, broken=why)


def bits_of(label: str) -> int | None:
    """Bits of a weight, from a name such as Q4_K_M, int4-block-32 or BF16."""
    found = _BITS.search(label)
    return int(found[1]) if found else None


def _measured(whole: Path, plans: Sequence[MadePlan]) -> PlannedSpeed | None:
    """Figures of ``whole``, a path without links, among ``plans`` (the latest first) that are
    younger than the file."""
    try:
        changed = max((f.stat().st_mtime for f in (whole, *whole.glob("*.onnx*"))), default=0.0)
    except OSError:
        return None
    for one in plans:
        if one.made < changed or one.plan.workload != "chat":
            continue
        if one.path == whole:
            return PlannedSpeed(one.plan.figures, one.made, chosen=True)
        for other in one.plan.alternatives:
            if one.path.with_name(other.file) == whole and other.figures is not None:
                return PlannedSpeed(other.figures, one.made, chosen=False)
    return None


def _unusable(runtime: Backend) -> str | None:
    """Why files of this runtime cannot be loaded here, if its library is missing."""
    if find_installed(runtime.name):
        return None
    name = runtime.label
    if len(runtime.distributions) == 1:
        name += f" ({runtime.distributions[0].replace('_', '-')})"
    return f"{name} is not installed; `ingot doctor` says how to install it"
