"""Ready model files from a repository on the hub into the library."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.models import library
from app.models.ready import Build, ReadyBuild, find_builds, pick
from quantize.hub.client import Hub, Listing, RemoteFile, Repository
from quantize.hub.names import HubName, parse_hub_name
from quantize.hub.transfer import arrived, fetch, fetch_files
from quantize.manifest import NAME as MANIFEST
from quantize.manifest import Manifest, load_manifest, write_manifest
from runtimes.errors import ModelError, RequestError

if TYPE_CHECKING:
    from quantize.progress.console import Reporter


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What was asked for: ORG/NAME[@REVISION][:WHAT]."""

    name: HubName
    what: str | None


@dataclass(frozen=True, slots=True)
class Offer(Build):
    """A model of a repository."""

    bytes: int
    arrived: int  # of them, from an interrupted download
    kept: bool  # in the library


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
    listing, builds, manifest = _look(repo)
    there = {file.path: file for file in listing.files}
    rows = [(b.label, sum(there[f].bytes for f in b.files), b.main or ".") for b in builds]
    build = pick(builds, request.what, str(request.name), library.table(rows))
    model = library.read(listing.repo)
    files = [there[path] for path in build.files]
    kept = _kept(build, files, listing)
    if kept in model.builds and model.is_whole(kept):
        progress.note(f"{request.name}:{build.label} is in the library already")
        return model.path(kept)
    waiting = _waiting(listing.repo)
    fetch_files(repo, listing, files, waiting, "pulling")
    return _publish(model, build, kept, files, manifest)


def offers(name: HubName, progress: Reporter, hub: Hub | None = None) -> list[Offer]:
    """What ``pull`` could bring of ``name``. Raises HubError, or ModelError when nothing is ready
    to run."""
    listing, builds, _ = _look(Repository(name, progress, hub or Hub()))
    there = {file.path: file for file in listing.files}
    model, waiting = library.read(listing.repo), _waiting(listing.repo)
    found = []
    for build in builds:
        files = [there[path] for path in build.files]
        kept = _kept(build, files, listing)
        found.append(
            Offer(
                build.label,
                build.kind,
                build.main or ".",
                kept.size,
                arrived(waiting, files),
                kept in model.builds and model.is_whole(kept),
            )
        )
    return found


def _look(repo: Repository) -> tuple[Listing, list[ReadyBuild], Manifest | None]:
    """What a repository holds, the models in it, and its manifest if `quantize` wrote it."""
    name = repo.name
    with repo.progress.stage(f"looking at {name}"):
        listing = repo.look()
    there = {file.path: file for file in listing.files}
    manifest = _manifest(repo, listing) if MANIFEST in there else None
    builds = _from_manifest(manifest, there) if manifest else find_builds(there)
    if not builds:
        original = any(path.endswith(".safetensors") for path in there)
        hint = f"; `quantize {name}` builds them from it" if original else ""
        raise ModelError(f"{name} holds no ready files, GGUF or ONNX{hint}")
    return listing, builds, manifest


def _publish(
    model: library.Model,
    build: ReadyBuild,
    kept: library.Kept,
    files: list[RemoteFile],
    manifest: Manifest | None,
) -> Path:
    """Unlist an older copy, move the files to their places, list them."""
    model = model.without(kept)
    library.write(model)
    placed: dict[str, Path] = {}
    for file in files:
        target = model.folder / _place(build, file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.key in placed:  # two files with the same content
            shutil.copyfile(placed[file.key], target)
        else:
            (_waiting(model.repo) / file.key).replace(target)
        placed[file.key] = target
    if manifest:
        labels = {build.label for build in (*model.builds, kept)}
        entries = tuple(entry for entry in manifest.files if entry.recipe in labels)
        write_manifest(model.folder, replace(manifest, files=entries))
    library.write(replace(model, builds=(*model.builds, kept)))
    with contextlib.suppress(OSError):  # other downloads may be under way there
        _waiting(model.repo).rmdir()
    return model.path(kept)


def _kept(build: ReadyBuild, files: list[RemoteFile], listing: Listing) -> library.Kept:
    places = {_place(build, file.path): file for file in files}
    return library.Kept(
        label=build.label,
        kind=build.kind,
        main=_place(build, build.main),
        commit=listing.commit,
        bytes={place: file.bytes for place, file in places.items()},
        sha256={place: file.key for place, file in places.items()},
    )


def _place(build: ReadyBuild, path: str) -> str:
    """Where a file of the repository goes: a model at the root of it gets a folder of its own."""
    if build.main == "":
        return f"{build.kind}/{path}" if path else build.kind
    return path


def _waiting(repo: str) -> Path:
    """Where files of ``repo`` lie until the build is whole."""
    return library.library_dir() / ".arriving" / repo.replace("/", "--")


def _manifest(repo: Repository, listing: Listing) -> Manifest | None:
    """The manifest of a repository that `quantize --push` wrote; None when it is something else's
    of the same name."""
    file = next(file for file in listing.files if file.path == MANIFEST)
    folder = (_waiting(listing.repo) / file.key).with_suffix(".manifest")
    fetch(repo, listing, file, folder / MANIFEST)
    try:
        return load_manifest(folder)
    except ModelError:
        return None
    finally:
        (folder / MANIFEST).unlink(missing_ok=True)
        folder.rmdir()


def _from_manifest(manifest: Manifest, there: dict[str, RemoteFile]) -> list[ReadyBuild]:
    found = []
    for entry in manifest.files:
        main = entry.path.strip("/")
        files = tuple(sorted(p for p in there if p == main or p.startswith(f"{main}/")))
        if files and {Path(main).parent.joinpath(name).as_posix() for name in entry.sha256} <= set(
            files
        ):
            found.append(ReadyBuild(entry.recipe, entry.format, main, files))
    return found
