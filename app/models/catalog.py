"""Every model file that can be chosen: pulled ones, folders that `quantize` wrote, loose files.

Fast on purpose: manifests and the library's records are read, the files themselves are not. A file
that cannot be used is listed with the reason.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from app.here import real
from app.models import library
from app.models.entries import ModelEntry, Origin, PlannedSpeed
from app.models.resolve import recently_used
from quantize.manifest import NAME as MANIFEST
from quantize.manifest import FileEntry, entry_path, load_manifest
from quantize.resolve import format_of, model_files
from runtimes.backend import Backend
from runtimes.errors import IngotError
from runtimes.machine.installed import find_installed
from runtimes.models.gguf import named_parts
from runtimes.models.registry import backends
from runtimes.planner.known import MadePlan, made_plans

_ROOT = Path(__file__).resolve().parents[2]
_DEMO = Path("assets") / "pebble-built"  # where `make demo` puts it
_BITS = re.compile(r"(?:^|[-_/])(?:UD-)?(?:I?Q|TQ|BF|F|FP|MXFP|NVFP|INT|W)(\d+)", re.IGNORECASE)

# What an entry takes from a manifest as it is.
_LISTED = ("format", "bits", "bits_per_weight", "bytes", "quality", "fidelity", "speed", "notes")


def catalog(given: Iterable[str | Path] = ()) -> list[ModelEntry]:
    """Everything there is, sorted by name and size, each file once.

    ``given`` are files and folders that were named by the user: they are listed even if they cannot
    be read. Takes milliseconds; damage shows in ``ModelEntry.broken`` and is never raised.
    """
    plans = made_plans()
    found: list[ModelEntry] = []
    for path in given:
        found += _at(Path(path), plans) or [_broken(Path(path), "no model is there")]
    for path in [*recently_used(), _DEMO, _ROOT / _DEMO]:
        found += _at(path, plans)
    for model in library.models():
        found += _pulled(model, plans)
    once: dict[Path, ModelEntry] = {}
    for entry in found:
        once.setdefault(real(entry.path), entry)
    missing: dict[str | None, str | None] = {one.format: _unusable(one) for one in backends()}
    listed = [replace(e, broken=e.broken or missing.get(e.format)) for e in once.values()]
    return sorted(listed, key=lambda e: (e.name.lower(), e.model, e.bytes or 0, e.recipe))


def entry_of(path: Path) -> ModelEntry:
    """What is known of one file that can be loaded, wherever it is."""
    found: Iterable[ModelEntry] = _at(path, ())
    if real(path).is_relative_to(library.library_dir().resolve()):
        found = (entry for model in library.models() for entry in _pulled(model, ()))
    same = (entry for entry in found if real(entry.path) == real(path))
    return next(same, None) or _loose(path, ())


def _at(path: Path, plans: Sequence[MadePlan]) -> list[ModelEntry]:
    """The models at ``path``; none when there is none."""
    try:
        if (path.parent / MANIFEST).is_file():
            # One of the files of a folder is listed with all that is known of it.
            beside = _built(path.parent, plans)
            if same := [entry for entry in beside if real(entry.path) == real(path)]:
                return same
        if (path / MANIFEST).is_file():
            return _built(path, plans)
        if format_of(path):
            return [_loose(path, plans)]
        return [_loose(file, plans) for file in model_files(path)] if path.is_dir() else []
    except OSError as error:
        return [_broken(path, error.strerror or str(error))]


def _built(folder: Path, plans: Sequence[MadePlan]) -> list[ModelEntry]:
    """The files of a folder that `quantize` wrote."""
    # A file of the library is the library's business.
    if real(folder).is_relative_to(library.library_dir().resolve()):
        return []
    try:
        manifest = load_manifest(folder)
    except IngotError as error:
        return [_broken(folder, str(error))]
    name = manifest.model.name
    return [
        _described(
            ModelEntry(str(folder), name, one.recipe, Origin.BUILT, folder, picked=one.recipe),
            one,
            plans,
        )
        for one in manifest.files
    ]


def _described(base: ModelEntry, listed: FileEntry, plans: Sequence[MadePlan]) -> ModelEntry:
    """``base``, whose ``path`` is the manifest's folder, with what the manifest says of a file."""
    try:
        path, broken = entry_path(base.path, listed), None
    except IngotError as error:
        path, broken = base.path / Path(listed.path).name, str(error)
    return replace(
        base,
        path=path,
        parity=listed.token_parity,
        measured=None if broken else _measured(path, plans),
        broken=broken,
        **{name: getattr(listed, name) for name in _LISTED},
    )


def _loose(path: Path, plans: Sequence[MadePlan]) -> ModelEntry:
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
        measured=_measured(path, plans),
    )


def _pulled(model: library.Model, plans: Sequence[MadePlan]) -> list[ModelEntry]:
    """What was pulled of one repository."""
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
            base = _described(base, listed, plans)
        path, whole = model.path(build), model.is_whole(build)
        again = f"a file is missing or has another size; `ingot pull {name}` gets it again"
        entry = replace(
            base,
            path=path,
            format=build.kind,
            bits=base.bits or bits_of(build.label),
            bytes=build.size,
            measured=_measured(path, plans) if whole else None,
            broken=None if whole else again,
        )
        found.append(entry)
    return found


def _broken(path: Path, why: str) -> ModelEntry:
    return ModelEntry(str(path), path.name or str(path), "", Origin.FILE, path, broken=why)


def bits_of(label: str) -> int | None:
    """Bits of a weight, from a name such as Q4_K_M, int4-block-32 or BF16."""
    found = _BITS.search(label)
    return int(found[1]) if found else None


def _measured(path: Path, plans: Sequence[MadePlan]) -> PlannedSpeed | None:
    """Figures of ``path`` among ``plans`` (the latest first) that are younger than the file."""
    whole = real(path)
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
