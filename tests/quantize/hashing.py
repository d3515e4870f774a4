"""Checksums as a manifest lists them."""

from __future__ import annotations

import hashlib
from pathlib import Path


def hash_files(path: Path) -> dict[str, str]:
    """sha256 of a file, or of each file of a folder, by its name as seen from the parent."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    digests = {}
    for file in files:
        with file.open("rb") as stream:
            name = file.relative_to(path.parent).as_posix()
            digests[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests
