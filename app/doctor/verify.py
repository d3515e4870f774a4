"""`ingot doctor --verify`: whether built files still hold the bytes that were built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.manifest import load_manifest
from quantize.verify import findings
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


def verify(folder: Path) -> Iterator[Verified]:
    """Every file that ``folder``'s manifest lists, read as a whole.

    Raises ModelError when there is no manifest, or it cannot be read.
    """
    if not (folder / "manifest.json").is_file():
        raise ModelError(f"{folder} has no manifest.json; --verify takes a folder of built files")
    for found in findings(folder, load_manifest(folder)):
        yield Verified(folder / found.file, found.bytes, found.problem)
