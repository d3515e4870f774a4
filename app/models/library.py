"""Models that were pulled: what is there, by which name, and how it goes away again. And the way
from MODEL on the command line to a loaded engine, with the list of models that were used lately.

::

    models/ORG/NAME/library.json      the builds that are whole, with sizes and checksums
    models/ORG/NAME/...               their files, by their paths in the repository
    models/ORG/NAME/manifest.json     when the repository was written by `quantize`: the pulled part

A build is listed after its files are in place, and unlisted before they go.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.adapters import AdapterFile
from app.options import ModelOptions
from quantize.disk import human, write_atomically
from quantize.fromjson import from_json
from quantize.hub.client import parse_hub_name
from quantize.manifest import NAME as MANIFEST
from quantize.manifest import entry_path, load_manifest, write_manifest
from runtimes.errors import ModelError, RequestError
from runtimes.machine.locks import one_writer
from runtimes.machine.state_file import change_state, load_state
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model, stretched
from runtimes.paths import data_dir
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.untrusted import check_name, inside, load_json
from runtimes.untrusted import remove as remove_below

if TYPE_CHECKING:
    from runtimes.worker.engine import WorkerEngine
    from runtimes.worker.process import Placement
    from runtimes.worker.recovery import DeathLimit


logger = logging.getLogger(__name__)

_RECORD = "library.json"
_HELD_S = 300.0  # files are moved meanwhile
_LIBRARY = "the library"
_OURS = (_RECORD, MANIFEST)


@dataclass(frozen=True, slots=True)
class Build:
    """One model that a runtime can load."""

    label: str  # what the user calls it: Q4_K_M, a folder's name
    kind: str  # a format
    main: str  # what is loaded: a file (the first part of a split one) or a folder


@dataclass(frozen=True, slots=True)
class Kept(Build):
    """A build in the library. ``bytes`` and ``sha256`` have one item for each of its files, which
    are loaded and removed by these names: raises ModelError for one outside the model's folder."""

    commit: str
    bytes: dict[str, int]
    sha256: dict[str, str]

    def __post_init__(self) -> None:
        """Check what the hub, or the record, says."""
        for name in {self.main, *self.bytes, *self.sha256}:
            check_name(name, f"the build {self.label}")
            if name.partition("/")[0].lower() in _OURS:
                raise ModelError(f"the build {self.label} has a file in the place of {_RECORD}")

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class Model:
    """A repository of which something was pulled."""

    repo: str
    builds: tuple[Kept, ...] = ()

    @property
    def folder(self) -> Path:
        """Folder of the repository's files."""
        return library_dir() / self.repo

    def path(self, build: Kept) -> Path:
        """Path that a runtime loads."""
        return self.folder / build.main

    def is_whole(self, build: Kept) -> bool:
        """Whether all files are there with their sizes."""
        files = ((self.folder / name, size) for name, size in build.bytes.items())
        return all(path.is_file() and path.stat().st_size == size for path, size in files)

    def has(self, build: Kept) -> bool:
        """Whether ``build`` is there, whole and of this commit."""
        return build in self.builds and self.is_whole(build)

    def without(self, build: Kept) -> Model:
        """A copy that does not list ``build``."""
        return Model(self.repo, tuple(b for b in self.builds if b.main != build.main))


def library_dir() -> Path:
    """The folder of all pulled models."""
    return data_dir() / "models"


def models() -> list[Model]:
    """Everything in the library, by name."""
    return [read(repo) for repo in _repos()]


def read(repo: str) -> Model:
    """The record of ``repo``; an empty one when nothing of it was pulled, or it is damaged: then
    the files are as good as not there, and pulling or removing mends it."""
    path = library_dir() / repo / _RECORD
    try:
        return _read(path, repo)
    except OSError as error:
        logger.warning("%s cannot be read: %s", path, error.strerror)
        return Model(repo)


def _read(path: Path, repo: str) -> Model:
    """Raises OSError: a record that cannot be read may be whole."""
    try:
        data = load_json(path)
        return Model(repo, tuple(from_json(Kept, item) for item in data["builds"]))
    except FileNotFoundError:
        return Model(repo)
    except (ModelError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s is damaged (%s); pull the model again", path, error)
        return Model(repo)


@contextlib.contextmanager
def changing(repo: str) -> Iterator[Model]:
    """The record of ``repo``, which nobody else changes until the block ends. Raises RequestError
    where it cannot be read, or somebody holds the library for minutes."""
    path = library_dir() / repo / _RECORD
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(one_writer(library_dir(), wait_s=_HELD_S))
            model = _read(path, repo)
        except OSError as error:
            said = f"{path} cannot be read: {error.strerror or error}; nothing was changed"
            raise RequestError(said) from error
        yield model


def write(model: Model) -> None:
    """Replace the record in one step."""
    data = {"builds": [asdict(build) for build in model.builds]}
    write_atomically(model.folder / _RECORD, json.dumps(data, indent=1))


def find(text: str) -> tuple[Model, Kept | None] | None:
    """The model in the library that ``text`` names, as ORG/NAME or NAME, and the build, when it
    says one as in NAME:Q4_K_M. None when the library has no such model.

    Raises RequestError for a NAME that several have, or for a build that is not there.
    """
    name, _, what = text.partition(":")
    wanted = name.lower()
    found = [repo for repo in _repos() if wanted in (repo.lower(), repo.lower().split("/")[1])]
    found = [repo for repo in found if repo.lower() == wanted] or found
    if not found:
        return None
    if len(found) > 1:
        raise RequestError(f"{name} may be {' and '.join(found)}; give the whole name")
    model = read(found[0])
    return model, pick(model.builds, what, model.repo) if what else None


def locate(text: str) -> str:
    """MODEL as a path: what is on disk stays as it is, a name in the library becomes its file, or
    its folder when several files of a `quantize` run were pulled.

    Raises ModelError for a model that must be pulled first, and RequestError as ``find``.
    """
    if Path(text).exists():
        return text
    found = find(text)
    if found is None:
        if parse_hub_name(text.partition(":")[0]):
            raise ModelError(
                f"{text}: no such file or folder, and not in the library: `ingot pull {text}` gets"
                " ready files, `quantize` builds them from the original"
            )
        return text
    model, build = found
    if build is None:
        if (model.folder / MANIFEST).is_file() and len(model.builds) > 1:
            return str(model.folder)
        build = pick(model.builds, None, model.repo)
    if not model.is_whole(build):
        raise ModelError(
            f"{model.path(build)} is not what was pulled: a file is missing or has another size;"
            f" `ingot pull {model.repo}:{build.label}` gets it again"
        )
    return str(model.path(build))


def remove(model: Model, build: Kept | None = None) -> None:
    """Take a build, or the whole model, out of the library. Raises RequestError where a link leads
    out of the library: what it points to is not the library's to remove."""
    folder = inside(library_dir(), model.repo, _LIBRARY, RequestError)
    if build is None or len(model.builds) <= 1:
        trash = folder.with_name(f".{folder.name}.{os.getpid()}.removed")
        folder.rename(trash)  # gone in one step, then slowly
        remove_below(trash.parent, trash.name, _LIBRARY, RequestError)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()
        return
    with changing(model.repo) as model:
        left = model.without(build)
        shared = {name for other in left.builds for name in other.bytes}
        gone = [inside(folder, one, _LIBRARY, RequestError) for one in build.bytes.keys() - shared]
        write(left)
        with contextlib.suppress(ModelError):  # none, or a damaged one
            write_manifest(folder, load_manifest(folder).without(build.label))
        for path in gone:
            path.unlink(missing_ok=True)
        main = inside(folder, build.main, _LIBRARY, RequestError)
        if main.is_dir() and not any(main.iterdir()):
            main.rmdir()


def pick(builds: Sequence[Kept], what: str | None, name: str) -> Kept:
    """The build that ``what`` names: by label, by path, or by a path's last part; without it the
    only one. Raises RequestError that lists what there is, or ModelError where there is nothing."""
    if not builds:
        raise ModelError(f"{name} holds nothing whole; `ingot pull {name}` again")
    wide = max(len(build.label) for build in builds)
    listing = "\n".join(f"  {b.label:<{wide}}  {human(b.size):>7}  {b.main}" for b in builds)
    if what is None:
        if len(builds) == 1:
            return builds[0]
        raise RequestError(
            f"{name} has {len(builds)} models; say which as {name}:{builds[0].label}\n{listing}"
        )
    asked = what.strip("/").lower()
    by_label = [b for b in builds if b.label.lower() == asked]
    by_path = [b for b in builds if asked in (b.main.lower(), b.main.split("/")[-1].lower())]
    # A path names one file; a label may stand for several.
    found = by_path if len(by_path) == 1 else by_label or by_path
    if len(found) == 1:
        return found[0]
    if found:
        raise RequestError(
            f"{name} has {len(found)} models called {what}; give a file's name\n{listing}"
        )
    names = {build.label.lower(): build.label for build in builds}
    near = difflib.get_close_matches(asked, names, n=1, cutoff=0.5)
    hint = f" (did you mean {names[near[0]]}?)" if near else ""
    raise RequestError(f"{name} has no {what!r}{hint}\n{listing}")


def _repos() -> list[str]:
    """ORG/NAME of everything that has a record."""
    found = library_dir().glob(f"*/*/{_RECORD}")
    names = sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in found)
    return [name for name in names if parse_hub_name(name)]  # else it is on its way out


# From MODEL on the command line to a loaded engine, and to an identity that survives renaming.


def model_file(model: str, options: ModelOptions) -> ModelFile:
    """Resolve and describe MODEL, a path or a name in the library, without loading it. Raises
    ModelError or RequestError."""
    from quantize.resolve import format_of, resolve

    if options.recipe is not None and options.file is not None:
        raise RequestError("--recipe and --file both pick a file; give one of them")
    model = locate(model)
    picks = options.recipe is not None or options.file is not None
    path = Path(model)
    if picks and format_of(path) and not (path / MANIFEST).is_file():
        raise RequestError(
            f"--recipe and --file pick from a folder of several files; {model} is one model"
        )
    path = resolve(model, recipe=options.recipe, file=options.file)
    return stretched(read_model(path), options.rope)


def model_paths(model: str, options: ModelOptions) -> list[Path]:
    """The files of MODEL: all that a folder of `quantize` lists, unless ``options`` pick one.
    Raises ModelError or RequestError."""
    from quantize.resolve import resolve

    model = locate(model)
    folder = Path(model)
    if options.recipe or options.file or not (folder / MANIFEST).is_file():
        return [resolve(model, recipe=options.recipe, file=options.file)]
    return [entry_path(folder, entry) for entry in load_manifest(folder).files]


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
    from runtimes.worker.supervisor import STEP_LIMIT, STEP_LIMIT_S

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


def note_loaded(file: Path) -> None:
    """Put a file that was loaded first, or the folder of files that it belongs to; what is in the
    library is listed anyway."""
    if file.resolve().is_relative_to(library_dir().resolve()):
        return
    used = str((file.parent if (file.parent / MANIFEST).is_file() else file).resolve())

    def first(kept: Mapping[str, object]) -> dict[str, object]:
        return {"models": [*dict.fromkeys((used, *_recent(kept)))][:_AT_MOST]}

    if _recent(load_state(_RECENT))[:1] != [used]:
        change_state(_RECENT, first)


def recently_used() -> list[Path]:
    """List the models used lately that are still there, the latest first."""
    # A text that is no name of a file is none that is there: Path.exists raises for it.
    return [Path(text) for text in _recent(load_state(_RECENT)) if os.path.exists(text)]


def _recent(kept: Mapping[str, object]) -> list[str]:
    models = kept.get("models")
    return [str(text) for text in models] if isinstance(models, list) else []
