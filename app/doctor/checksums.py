"""Whether model files still hold the bytes that were built or pulled."""

from collections.abc import Iterator
from pathlib import Path

from app.models import library
from quantize.manifest import NAME, Finding, compare, findings, load_manifest
from runtimes.errors import ModelError


def check(model: str | None) -> Iterator[Finding]:
    """Read every file of ``model``, a folder that `quantize` wrote or a name in the library, or of
    the whole library.

    Raises ModelError when there are no checksums to compare with, and as ``library.find``.
    """
    if model is None:
        for pulled in library.models():
            yield from _pulled(pulled, pulled.builds)
    elif (folder := Path(model)).exists():
        if not (folder / NAME).is_file():
            raise ModelError(
                f"{folder} has no {NAME}; --checksums takes a folder that quantize wrote"
            )
        for entry in load_manifest(folder).files:
            yield from findings(folder, entry)
    elif known := library.find(model):
        pulled, build = known
        yield from _pulled(pulled, pulled.builds if build is None else (build,))
    else:
        raise ModelError(f"{model}: no such folder, and not in the library (`ingot models`)")


def _pulled(model: library.Model, builds: tuple[library.Kept, ...]) -> Iterator[Finding]:
    for build in builds:
        for name, sha256 in build.sha256.items():
            yield compare(model.folder, name, sha256)
