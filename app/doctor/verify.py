"""`ingot doctor --verify`: whether model files still hold the bytes that were built or pulled."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.models import library
from quantize.manifest import NAME, load_manifest
from quantize.stages.verify import compare, findings
from runtimes.errors import ModelError


@dataclass(frozen=True, slots=True)
class Verified:
    """One file; ``problem`` is empty when its bytes are the ones that were built."""

    path: Path
    bytes: int
    problem: str

    def as_json(self) -> dict[str, Any]:
        """A line of ``--json``."""
        return {"path": str(self.path), "bytes": self.bytes, "problem": self.problem or None}


def verify(model: str | None) -> Iterator[Verified]:
    """Read every file of ``model``, a folder that `quantize` wrote or a name in the library, or of
    the whole library.

    Raises ModelError when there are no checksums to compare with, and as ``library.find``.
    """
    if model is None:
        for pulled in library.models():
            yield from _pulled(pulled, pulled.builds)
    elif Path(model).exists():
        yield from _built(Path(model))
    elif found := library.find(model):
        pulled, build = found
        yield from _pulled(pulled, pulled.builds if build is None else (build,))
    else:
        raise ModelError(f"{model}: no such folder, and not in the library (`ingot models`)")


def _built(folder: Path) -> Iterator[Verified]:
    if not (folder / NAME).is_file():
        raise ModelError(f"{folder} has no {NAME}; --verify takes a folder that quantize wrote")
    for found in findings(folder, load_manifest(folder)):
        yield Verified(folder / found.file, found.bytes, found.problem)


def _pulled(model: library.Model, builds: tuple[library.Kept, ...]) -> Iterator[Verified]:
    for build in builds:
        for name, sha256 in build.sha256.items():
            yield Verified(model.folder / name, *compare(model.folder, name, sha256))
