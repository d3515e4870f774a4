"""Ready model files from a repository on the hub into the library."""

from __future__ import annotations

import contextlib
import fnmatch
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.models import library
from app.models.library import Build, Kept
from quantize.hub.client import (
    Hub,
    HubError,
    HubName,
    Listing,
    RemoteFile,
    Repository,
    parse_hub_name,
)
from quantize.hub.transfer import fetch, fetch_files
from quantize.manifest import NAME as MANIFEST
from quantize.manifest import Manifest, load_manifest, write_manifest
from runtimes.backend import Backend
from runtimes.errors import ModelError, RequestError
from runtimes.models.registry import backends
from runtimes.untrusted import inside

if TYPE_CHECKING:
    from quantize.progress import Reporter

_MOST_MANIFEST = 32 * 2**20  # bytes
_PART = re.compile(r"(.+)-\d{5}-of-\d{5}")
_TYPE = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_0|MXFP4|NVFP4|BF16|FP?16|FP?32))(?=[-._]|$)",
    re.IGNORECASE,
)
# Parts of other things: image encoders, importance matrices.
_NO_MODEL = re.compile(r"(?:^|[-._/])(?:mmproj|imatrix)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What was asked for: ORG/NAME[@REVISION][:WHAT]."""

    name: HubName
    what: str | None


@dataclass(frozen=True, slots=True)
class ReadyBuild(Build):
    """A model in a repository; ``main`` is empty for one at its root."""

    files: tuple[str, ...]  # by their paths in the repository


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a repository holds: its manifest if `quantize` wrote it, and the models in it with their
    files, as the library will have them."""

    listing: Listing
    manifest: Manifest | None
    ready: tuple[tuple[Kept, tuple[RemoteFile, ...]], ...]


def parse_request(text: str) -> PullRequest:
    """Read the argument of `ingot pull`. Raises RequestError for what cannot be one."""
    name, _, what = text.partition(":")
    parsed = parse_hub_name(name)
    if parsed is None:
        raise RequestError(f"{text!r} is not a name on the hub; write ORG/NAME or ORG/NAME:Q4_K_M")
    return PullRequest(parsed, what or None)


def pull(request: PullRequest, progress: Reporter, hub: Hub | None = None) -> Path:
    """Bring what ``request`` names into the library; the path that a runtime loads.

    A download that was interrupted resumes where it stopped; every file is checked against the
    checksum that the hub keeps. Raises RequestError with a list when it is not clear what is meant,
    HubError, DiskFullError.
    """
    repo = Repository(request.name, progress, hub or Hub())
    found = look(repo)
    listing, ready = found.listing, found.ready
    if not ready:
        original = any(file.path.endswith(".safetensors") for file in listing.files)
        hint = f"; `quantize {repo.name}` builds them from it" if original else ""
        raise ModelError(f"{repo.name} holds no ready files, GGUF or ONNX{hint}")
    kept = library.pick([kept for kept, _ in ready], request.what, str(request.name))
    files = next(files for one, files in ready if one is kept)
    model = library.read(listing.repo)
    if model.has(kept):
        progress.note(f"{request.name}:{kept.label} is in the library already")
        return model.path(kept)
    fetch_files(repo, listing, files, waiting(listing.repo), "pulling")
    with library.changing(listing.repo) as model:  # others may have come meanwhile
        return _publish(model, kept, files, found.manifest)


def look(repo: Repository) -> Holdings:
    """What there is to pull. Raises HubError or UsageError."""
    with repo.progress.stage(f"looking at {repo.name}"):
        listing = repo.look()
    there = {file.path: file for file in listing.files}
    manifest = _manifest(repo, listing, there[MANIFEST]) if MANIFEST in there else None
    ready = []
    for build in _from_manifest(manifest, there) if manifest else find_builds(there):
        files = [there[path] for path in build.files]
        places = {_place(build, file.path): file for file in files}
        kept = Kept(
            build.label,
            build.kind,
            _place(build, build.main),
            listing.commit,
            bytes={place: file.bytes for place, file in places.items()},
            sha256={place: file.key for place, file in places.items()},
        )
        ready.append((kept, tuple(files)))
    return Holdings(listing, manifest, tuple(ready))


def _place(build: ReadyBuild, path: str) -> str:
    """Where a file of the repository goes: a model at the root of it gets a folder of its own."""
    return path if build.main else f"{build.kind}/{path}".rstrip("/")


def _publish(
    model: library.Model, kept: Kept, files: Sequence[RemoteFile], manifest: Manifest | None
) -> Path:
    """Unlist an older copy, move the files to their places, list them."""
    model = model.without(kept)
    library.write(model)
    placed: dict[str, Path] = {}
    for place, file in zip(kept.bytes, files, strict=True):
        target = inside(model.folder, place, model.repo, HubError)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.key in placed:  # two files with the same content
            target.unlink(missing_ok=True)  # not into a file that has another name, too
            shutil.copyfile(placed[file.key], target)
        else:
            (waiting(model.repo) / file.key).replace(target)
        placed[file.key] = target
    model = replace(model, builds=(*model.builds, kept))
    if manifest:
        labels = {build.label for build in model.builds}
        entries = tuple(entry for entry in manifest.files if entry.recipe in labels)
        write_manifest(model.folder, replace(manifest, files=entries))
    library.write(model)
    with contextlib.suppress(OSError):  # other downloads may be under way there
        waiting(model.repo).rmdir()
    return model.path(kept)


def waiting(repo: str) -> Path:
    """Where files of ``repo`` lie until the build is whole."""
    return library.library_dir() / ".arriving" / repo.replace("/", "--")


def _manifest(repo: Repository, listing: Listing, file: RemoteFile) -> Manifest | None:
    """The manifest of a repository that `quantize --push` wrote; None when it is something else's
    of the same name."""
    if file.bytes > _MOST_MANIFEST:
        return None
    folder = (waiting(listing.repo) / file.key).with_suffix(".manifest")
    fetch(repo, listing, file, folder / MANIFEST)
    try:
        return load_manifest(folder)
    except ModelError:
        return None
    finally:
        shutil.rmtree(folder)


def _from_manifest(manifest: Manifest, there: Iterable[str]) -> Iterator[ReadyBuild]:
    """The models of which every file is there."""
    for entry in manifest.files:
        main = entry.path.strip("/")
        files = tuple(sorted(p for p in there if p == main or p.startswith(f"{main}/")))
        listed = {Path(main).parent.joinpath(name).as_posix() for name in entry.sha256}
        if files and listed <= set(files):
            yield ReadyBuild(entry.recipe, entry.format, main, files)


def find_builds(paths: Iterable[str]) -> list[ReadyBuild]:
    """The models among ``paths``, by runtime and then in the order of their names."""
    everything = sorted(paths)
    return [
        build
        for one in backends()
        for build in (*_single_files(one, everything), *_folders(one, everything))
    ]


def is_projector(path: str) -> bool:
    """Whether a file is the image encoder of a model beside it."""
    return path.endswith(".gguf") and "mmproj" in path.rpartition("/")[2].lower()


def _single_files(runtime: Backend, paths: Sequence[str]) -> Iterator[ReadyBuild]:
    groups: dict[str, list[str]] = {}
    for path in paths:
        stem, _, suffix = path.rpartition(".")
        if f".{suffix.lower()}" in runtime.suffixes and not _NO_MODEL.search(path):
            part = _PART.fullmatch(stem)
            groups.setdefault(part[1] if part else stem, []).append(path)
    for stem, files in groups.items():
        name = stem.split("/")[-1]
        types = _TYPE.findall(name)  # the last one counts, as llama.cpp writes it
        label = types[-1].upper().replace("FP", "F") if types else name
        yield ReadyBuild(label, runtime.format, files[0], tuple(files))


def _folders(runtime: Backend, paths: Sequence[str]) -> Iterator[ReadyBuild]:
    inside: dict[str, list[str]] = {}
    for path in paths:
        inside.setdefault(path.rpartition("/")[0], []).append(path)
    for folder, files in inside.items() if runtime.folder else ():
        names = [path.rpartition("/")[2] for path in files]
        if all(fnmatch.filter(names, pattern) for pattern in runtime.folder):
            yield ReadyBuild(folder or runtime.format, runtime.format, folder, tuple(files))
