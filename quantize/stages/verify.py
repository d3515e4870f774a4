"""Whether bytes on the disk are still the ones that were written: by size, and by sha256."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quantize.manifest import FileEntry, Manifest, entry_path
from runtimes.errors import ModelError


@dataclass(frozen=True, slots=True)
class Digest:
    """Size in bytes and sha256 of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One file of a manifest; ``problem`` is empty when its bytes are the ones that were built."""

    recipe: str
    file: str
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


def findings(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """Compare every file that ``manifest`` lists with its checksum, one after the other."""
    for entry in manifest.files:
        yield from entry_findings(folder, entry)


def entry_findings(folder: Path, entry: FileEntry) -> Iterator[Finding]:
    """The files of one entry against the checksums in it."""
    try:
        entry_path(folder, entry)
    except ModelError as error:
        yield Finding(entry.recipe, entry.path, 0, str(error))
        return
    for name, wanted in entry.sha256.items():
        yield Finding(entry.recipe, name, *compare(folder, name, wanted))


def is_whole(folder: Path, entry: FileEntry) -> bool:
    """Whether all bytes of ``entry`` are there as they were built."""
    return not any(finding.problem for finding in entry_findings(folder, entry))


def compare(folder: Path, name: str, wanted: str) -> tuple[int, str]:
    """Size of the file ``name`` in ``folder``, and what is wrong with it if its sha256 is not
    ``wanted``."""
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        return 0, "lies outside the folder"
    try:
        found = digest(file)
    except FileNotFoundError:
        return 0, "is missing"
    except OSError as error:
        return 0, f"cannot be read: {error.strerror}"
    return found.bytes, "" if found.sha256 == wanted else "has other bytes than were built"
