"""The disk: sizes in words, whether there is room, files that are written in one step."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from quantize.errors import DiskFullError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
_SPARE = 100_000_000


def human(count: int) -> str:
    """A size as people write it: 310 kB, 4.7 MB, 15 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            value = count / scale
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count} B"


def sha256_of(path: Path) -> str:
    """The checksum of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def free_space(folder: Path) -> tuple[Path, int]:
    """The nearest folder that exists of ``folder`` and those above it, and the bytes that are free
    on its disk."""
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    return existing, shutil.disk_usage(existing).free


def require_room(folder: Path, needed: int, what: str) -> None:
    """Raise DiskFullError unless the disk of ``folder``, which need not exist yet, has room for
    ``needed`` bytes and a little more."""
    existing, free = free_space(folder)
    if needed + _SPARE > free:
        raise DiskFullError(
            f"{what} needs {human(needed + _SPARE)} free below {existing}, and there are"
            f" {human(free)}: make room, or set INGOT_HOME to a folder on another disk"
        )


@contextlib.contextmanager
def full_disk_explained(
    folder: Path,
    elsewhere: str = "set INGOT_HOME to a folder on another disk",
    kept: str = "what has arrived stays",
) -> Iterator[None]:
    """Turn a disk that fills up, or that may not be written, into an error that says so."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(
                f"the disk of {folder} is full: make room, or {elsewhere}; {kept}"
            ) from error
        if error.errno in _DENIED:
            raise UsageError(
                f"{folder} cannot be written: {error.strerror}; {elsewhere}"
            ) from error
        raise


def write_atomically(path: Path, text: str, work: Path | None = None) -> None:
    """Replace ``path`` in one step: a reader sees the old content or the new. Missing folders are
    made. ``work`` is a folder on the same disk where the new content is written first.

    A link at ``path`` is replaced: what it points to stays as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = (work or path.parent) / f".{path.name}.{secrets.token_hex(8)}.partial"
    try:
        with partial.open("x", encoding="utf-8") as file:  # new: never through a link
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
