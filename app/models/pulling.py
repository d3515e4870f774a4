"""Ready model files from a repository on the hub into the library, also in a thread that a screen
follows."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.models import library
from app.models.library import Build, Kept
from quantize.hub.client import (
    Hub,
    HubError,
    HubName,
    Listing,
    Patience,
    RemoteFile,
    Repository,
    parse_hub_name,
)
from quantize.hub.transfer import fetch, fetch_files
from quantize.manifest import NAME as MANIFEST
from quantize.manifest import Manifest, load_manifest, write_manifest
from quantize.progress import Pace, Reporter
from runtimes.backend import Backend
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.models.registry import backends
from runtimes.untrusted import inside

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
    """A model to pull: ORG/NAME[@REVISION][:WHAT]."""

    name: HubName
    what: str | None


@dataclass(frozen=True, slots=True)
class ReadyBuild(Build):
    """A model in a repository; ``main`` is empty for one at its root."""

    files: tuple[str, ...]  # by their paths in the repository


@dataclass(frozen=True, slots=True)
class Holdings:
    """Contents of a repository: its manifest if `quantize` wrote it, and its models with their
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
    """List what can be pulled. Raises HubError or UsageError."""
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
    """Place of a repository's file in the library: a model at the root gets a folder of its own."""
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
    """Folder of files of ``repo`` whose build is not whole yet."""
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


# A download in a thread of its own, for screens that ask how it is.

logger = logging.getLogger(__name__)


class _CancelledError(BaseException):
    """Leaves the transfer at the next piece; no ``except Exception`` on the way may keep it."""


@dataclass(frozen=True, slots=True)
class PullState:
    """How far it is; at the end with ``path``, ``error`` or ``cancelled``."""

    stage: str = ""
    done: int = 0  # bytes
    total: int | None = None  # None: not known yet
    rate: float | None = None  # bytes a second
    seconds_left: float | None = None
    note: str | None = None
    path: Path | None = None
    error: str | None = None
    cancelled: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return bool(self.cancelled or self.error or self.path)


@dataclass(frozen=True)
class _CancellableHub(Hub):
    """Does not try again once the download was cancelled."""

    check: Callable[[], None] = lambda: None

    def pause_after(self, error: Exception) -> float | None:
        self.check()
        return super().pause_after(error)


class PullJob(Reporter):
    """Brings ``request.what`` of a repository, or the only model that it has.

    Every method may be called from any thread and returns at once. What has arrived when it is
    cancelled or fails stays, and the next download of the same file resumes from there.
    """

    def __init__(self, request: PullRequest, patience: Patience | None = None) -> None:
        self.request = request
        self._hub = _CancellableHub(patience or Patience(), self._check)
        self._pace = Pace()
        self._cancel = threading.Event()
        self._state = PullState()  # replaced whole, by the job's thread alone
        self._thread = threading.Thread(target=self._run, daemon=True, name="pull")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def cancel(self) -> None:
        """Stop at the next piece; a connection that stalls is given up when its time is over, and
        not tried again."""
        self._cancel.set()

    def poll(self) -> PullState:
        """How far it is now. A cancelled job has ended for its user at once."""
        state = self._state
        return state if state.ended else replace(state, cancelled=self._cancel.is_set())

    def _run(self) -> None:
        try:
            self._now(path=pull(self.request, self, self._hub))
        except _CancelledError:
            self._now(cancelled=True)
        except (IngotError, OSError) as error:
            self._now(error=str(error) or type(error).__name__)
        except Exception as error:
            logger.exception("the download failed")
            self._now(error=f"internal error: {type(error).__name__}: {error}")

    def _now(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)

    # What it is told on its thread, as every quantize.progress.Reporter

    @contextlib.contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Begin a part of the work."""
        self._check()
        outer = self._state.stage
        self._now(stage=text)
        try:
            yield
        finally:
            self._now(stage=outer)

    def advance(self, done: float, total: float | None, unit: str) -> None:
        """Note how many bytes there are."""
        self._check()
        pace = self._pace
        pace.update(done, total, unit)
        whole = None if total is None else int(total)
        self._now(done=int(done), total=whole, rate=pace.rate, seconds_left=pace.seconds_left)

    def note(self, text: str) -> None:
        """Keep what the user should know."""
        self._now(note=text)

    def _check(self) -> None:
        if self._cancel.is_set():
            raise _CancelledError
