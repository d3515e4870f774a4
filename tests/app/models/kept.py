"""Models in the library that nobody has pulled, and folders that `quantize` has not written."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from app.models import library
from quantize.manifest import (
    FileEntry,
    Manifest,
    ModelInfo,
    ModelOrigin,
    digest,
    digests,
    write_manifest,
)
from runtimes.llamacpp.backend import BACKEND as LLAMACPP
from runtimes.onnx.backend import BACKEND as ONNX


def keep(repo: str, builds: dict[str, dict[str, bytes]]) -> library.Model:
    """A model of these builds, by their labels, with these files; the first one is loaded."""
    kept = []
    for label, files in builds.items():
        kind = "gguf" if any(name.endswith(".gguf") for name in files) else "onnx"
        main = next(iter(files)) if kind == "gguf" else next(iter(files)).rpartition("/")[0]
        sizes = {name: len(data) for name, data in files.items()}
        sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        kept.append(library.Kept(label, kind, main, "c", sizes, sums))
        for name, data in files.items():
            path = library.library_dir() / repo / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    model = library.Model(repo, tuple(kept))
    library.write(model)
    return model


def built(folder: Path) -> Path:
    """The tiny models of the self-tests, as files of q4_k_m and onnx-int4."""
    folder.mkdir(parents=True)
    one = Path(shutil.copy(LLAMACPP.selftest, folder / "tiny-q4_k_m.gguf"))
    shutil.copytree(ONNX.selftest.parent, folder / "onnx-int4")
    origin = ModelOrigin("tiny", "h")
    sums = {one.name: digest(one)}
    several = {f"onnx-int4/{name}": d for name, d in digests(folder / "onnx-int4").items()}
    entries = tuple(
        FileEntry(
            *(format, recipe, 4, path, sum(d.bytes for d in found.values())),
            {name: d.sha256 for name, d in found.items()},
            origin,
            {},
        )
        for format, recipe, path, found in (
            ("gguf", "q4_k_m", one.name, sums),
            ("onnx", "onnx-int4", "onnx-int4", several),
        )
    )
    write_manifest(folder, Manifest(ModelInfo("tiny", "llama", 1), entries))
    return folder
