"""Whether bytes on the disk are still the ones that were written: by size, and by sha256."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quantize.manifest import FileEntry, entry_path, listed_path
from runtimes.errors import ModelError


@dataclass(frozen=True, slots=True)
class Digest:
    """Size in bytes and sha256 of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One file; ``problem`` is empty when its bytes are the ones that were built."""

    path: Path
    bytes: int
    problem: str = ""


def digest(file: Path) -> Digest:
    """Read ``file`` once, as a stream."""
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
        return Digest(stream.tell(), found)


def digests(path: Path, without: str = "") -> dict[str, Digest]:
    """Every file below the folder ``path``, except one named ``without`` in it, by its name as seen
    from there."""
    return {
        name: digest(path / name)
        for name in sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        if name != without
    }


def findings(folder: Path, entry: FileEntry) -> Iterator[Finding]:
    """The files of ``entry`` against the checksums in it, one after the other."""
    try:
        entry_path(folder, entry)
    except ModelError as error:
        yield Finding(folder / entry.path, 0, str(error))
        return
    for name, wanted in entry.sha256.items():
        yield compare(folder, name, wanted)


def is_whole(folder: Path, entry: FileEntry) -> bool:
    """Whether all bytes of ``entry`` are there as they were built."""
    return not any(finding.problem for finding in findings(folder, entry))


def compare(folder: Path, name: str, wanted: str) -> Finding:
    """The file ``name`` in ``folder``, whose sha256 should be ``wanted``."""
    try:
        file = listed_path(folder, name)
    except ModelError:
        return Finding(folder / name, 0, "lies outside the folder")
    try:
        if file.exists() and not file.is_file():  # a pipe would be waited for
            return Finding(file, 0, "is no file")
        found = digest(file)
    except FileNotFoundError:
        return Finding(file, 0, "is missing")
    except OSError as error:
        return Finding(file, 0, f"cannot be read: {error.strerror}")
    other = found.sha256 != wanted
    return Finding(file, found.bytes, "has other bytes than were built" if other else "")
