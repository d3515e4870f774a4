"""Ready models among the files of a repository: what belongs together, and what to call it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantize.recipes.recipe import Format
from runtimes.errors import RequestError

_SPLIT = re.compile(r"(.+)-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
_TYPE = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_0|MXFP4|NVFP4|BF16|FP?16|FP?32))(?=[-._]|$)",
    re.IGNORECASE,
)
# Parts of other things: image encoders, importance matrices.
_NO_MODEL = re.compile(r"(?:^|[-._/])(?:mmproj|imatrix)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Build:
    """One model that a runtime can load: ``files`` by their paths in the repository.

    ``main`` is what is loaded: a .gguf file (the first part of a split one) or an ONNX folder, ""
    being the repository's root. ``label`` is what the user calls it: Q4_K_M, a folder's name.
    """

    label: str
    kind: Format
    main: str
    files: tuple[str, ...]


def find_builds(paths: Iterable[str]) -> list[Build]:
    """The models among ``paths``, GGUF first, in the order of their names."""
    everything = sorted(paths)
    groups: dict[str, list[str]] = {}
    for path in everything:
        if path.lower().endswith(".gguf") and not _NO_MODEL.search(path):
            split = _SPLIT.fullmatch(path)
            groups.setdefault(split[1] if split else path[: -len(".gguf")], []).append(path)
    found = [Build(_label(stem), "gguf", parts[0], tuple(parts)) for stem, parts in groups.items()]
    for config in (p for p in everything if p.split("/")[-1] == "genai_config.json"):
        folder = config.rpartition("/")[0]
        prefix = f"{folder}/" if folder else ""
        inside = [p for p in everything if p.startswith(prefix) and "/" not in p[len(prefix) :]]
        if any(path.endswith(".onnx") for path in inside):
            found.append(Build(folder or "onnx", "onnx", folder, tuple(inside)))
    return found


def pick(builds: Sequence[Build], what: str | None, name: str, listing: str) -> Build:
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
