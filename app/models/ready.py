"""Ready models among the files of a repository: what belongs together, and what to call it."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from runtimes.backend import Backend
from runtimes.errors import RequestError
from runtimes.load import backends

_PART = re.compile(r"(.+)-\d{5}-of-\d{5}")
_TYPE = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_0|MXFP4|NVFP4|BF16|FP?16|FP?32))(?=[-._]|$)",
    re.IGNORECASE,
)
# Parts of other things: image encoders, importance matrices.
_NO_MODEL = re.compile(r"(?:^|[-._/])(?:mmproj|imatrix)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Build:
    """One model that a runtime can load."""

    label: str  # what the user calls it: Q4_K_M, a folder's name
    kind: str  # a format
    main: str  # what is loaded: a file (the first part of a split one) or a folder ("": the root)


@dataclass(frozen=True, slots=True)
class ReadyBuild(Build):
    """A model in a repository."""

    files: tuple[str, ...]  # by their paths in the repository


_Build = TypeVar("_Build", bound=Build)


def find_builds(paths: Iterable[str]) -> list[ReadyBuild]:
    """The models among ``paths``, by runtime and then in the order of their names."""
    everything = sorted(paths)
    return [
        build
        for one in backends()
        for build in (*_single_files(one, everything), *_folders(one, everything))
    ]


def _single_files(runtime: Backend, paths: Sequence[str]) -> Iterator[ReadyBuild]:
    groups: dict[str, list[str]] = {}
    for path in paths:
        stem, _, suffix = path.rpartition(".")
        if f".{suffix.lower()}" in runtime.suffixes and not _NO_MODEL.search(path):
            part = _PART.fullmatch(stem)
            groups.setdefault(part[1] if part else stem, []).append(path)
    for stem, files in groups.items():
        yield ReadyBuild(_label(stem), runtime.format, files[0], tuple(files))


def _folders(runtime: Backend, paths: Sequence[str]) -> Iterator[ReadyBuild]:
    inside: dict[str, list[str]] = {}
    for path in paths:
        inside.setdefault(path.rpartition("/")[0], []).append(path)
    for folder, files in inside.items() if runtime.folder else ():
        names = [path.rpartition("/")[2] for path in files]
        if all(fnmatch.filter(names, pattern) for pattern in runtime.folder):
            yield ReadyBuild(folder or runtime.format, runtime.format, folder, tuple(files))


def pick(builds: Sequence[_Build], what: str | None, name: str, listing: str) -> _Build:
    """The build that ``what`` names: by label, by path, or by a path's last part; without it the
    only one. Raises RequestError with ``listing``, which shows what there is."""
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


def _label(stem: str) -> str:
    """A type in the file's name, the last one, as llama.cpp writes it; else the name itself."""
    found = _TYPE.findall(stem.split("/")[-1])
    return found[-1].upper().replace("FP", "F") if found else stem.split("/")[-1]
