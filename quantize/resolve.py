"""From what the user calls MODEL to the file that a runtime loads."""

import difflib
from pathlib import Path

from quantize.manifest import NAME, FileEntry, Manifest, entry_path, load_manifest
from runtimes.errors import ModelError
from runtimes.machine.installed import find_installed
from runtimes.models.gguf import named_parts
from runtimes.models.registry import backends

# When a folder holds several builds and none is asked for: small and good first, then what is left
# in the order in which it was built. (The planner measures; this is the choice without it.)
_PREFERENCE = ("q4_k_m", "onnx-int4", "q8_0", "onnx-int8")


def resolve(model: str | Path, recipe: str | None = None, file: str | None = None) -> Path:
    """The GGUF file or ONNX folder that ``model`` means.

    ``model`` is a single file (.gguf), an ONNX folder, or a folder that `quantize` wrote; in the
    last, ``recipe`` or ``file`` (a name from its manifest) picks the build, and without either the
    first of q4_k_m, onnx-int4, q8_0, onnx-int8 that is there and whose runtime is installed. Raises
    ModelError saying what there is.
    """
    path = Path(model)
    if not path.exists():
        raise ModelError(f"{model}: no such file or folder")
    if path.is_file():
        if format_of(path) is None:
            raise ModelError(f"{model} is not a {' or '.join(_suffixes())} file")
        return path
    if (path / NAME).is_file():
        return entry_path(path, _pick(path, load_manifest(path), recipe, file))
    if format_of(path):
        return path
    if (path / "config.json").is_file():
        raise ModelError(f"{model} is a Hugging Face model: build it first with `quantize {model}`")
    loose = model_files(path)
    names = ", ".join(p.name for p in loose)
    if loose and recipe is not None:
        raise ModelError(f"{model} has no {NAME}, which would say what {recipe} is: take --file")
    if loose and file is not None:
        if path / file not in loose:
            raise ModelError(f"{model} has no {file}; it holds {names}")
        return path / file
    if len(loose) == 1:
        return loose[0]
    if loose:
        raise ModelError(f"{model} holds {names}: say which with --file")
    marks = [NAME, *_suffixes(), *(one.folder[0] for one in backends() if one.folder)]
    raise ModelError(f"{model} holds no model: neither {' nor '.join(marks)}")


def format_of(path: Path) -> str | None:
    """The format of the model that ``path``, a file or a folder, is by its name or its files."""
    for one in backends():
        if path.is_dir() and one.folder and all(any(path.glob(name)) for name in one.folder):
            return one.format
        if path.is_file() and path.suffix.lower() in one.suffixes:
            return one.format
    return None


def model_files(folder: Path) -> list[Path]:
    """The models in ``folder`` that are single files, by name; of a split one the first part."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and format_of(path))
    return [path for path in files if named_parts(path)[0] == path]


def _suffixes() -> list[str]:
    return [suffix for one in backends() for suffix in one.suffixes]


def _pick(folder: Path, manifest: Manifest, recipe: str | None, file: str | None) -> FileEntry:
    if not manifest.files:
        raise ModelError(f"{folder / NAME} lists no files; run `quantize` again")
    if recipe is None and file is None:
        ranked = [entry for name in _PREFERENCE if (entry := manifest.entry(name))]
        ranked += manifest.files
        formats = {backend.format for backend in backends() if find_installed(backend.name)}
        usable = (entry for entry in ranked if entry.format in formats)
        return next(usable, ranked[0])
    for entry in manifest.files:
        by_name = file is not None and file.rstrip("/") in (entry.path, entry.recipe)
        if entry.recipe == recipe or by_name:
            return entry
    asked = recipe if recipe is not None else str(file)
    there = [entry.recipe if recipe is not None else entry.path for entry in manifest.files]
    near = difflib.get_close_matches(asked, there, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ModelError(f"{folder} has no {asked!r}{hint}; it holds {', '.join(there)}")
