"""From what the user calls MODEL to the file that a runtime loads."""

from __future__ import annotations

import difflib
from pathlib import Path

from quantize.manifest import NAME, FileEntry, Manifest, entry_path, load_manifest
from runtimes.errors import ModelError
from runtimes.load import backends
from runtimes.machine.installed import find_installed
from runtimes.models.gguf_split import gguf_files

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
        suffixes = [suffix for backend in backends() for suffix in backend.suffixes]
        if path.suffix.lower() not in suffixes:
            raise ModelError(f"{model} is not a {' or '.join(suffixes)} file")
        return path
    if (path / NAME).is_file():
        return _from_manifest(path, load_manifest(path), recipe, file)
    if is_onnx_folder(path):
        return path
    if (path / "config.json").is_file():
        raise ModelError(f"{model} is a Hugging Face model: build it first with `quantize {model}`")
    loose = gguf_files(path)
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
    raise ModelError(f"{model} holds no model: neither {NAME} nor .gguf nor genai_config.json")


def is_onnx_folder(path: Path) -> bool:
    """Whether ``path`` holds what onnxruntime-genai's builder writes."""
    return (path / "genai_config.json").is_file() and any(path.glob("*.onnx"))


def _from_manifest(folder: Path, manifest: Manifest, recipe: str | None, file: str | None) -> Path:
    if not manifest.files:
        raise ModelError(f"{folder / NAME} lists no files; run `quantize` again")
    return entry_path(folder, _pick(folder, manifest, recipe, file))


def _pick(folder: Path, manifest: Manifest, recipe: str | None, file: str | None) -> FileEntry:
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
