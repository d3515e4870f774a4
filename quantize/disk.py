"""The disk: sizes in words, room, files that are written in one step, and output files that a user
names.

`write_atomically` is for files that Ingot names itself. `outfile` writes to whatever is at a path:
a file is replaced in one step, and keeps its permissions; a link stays, what it leads to is
replaced; a pipe, a terminal or a device is written to, as is a descriptor of this process such as
/dev/stdout. A folder, a socket or a disk is refused.
"""

import contextlib
import errno
import filecmp
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quantize.errors import DiskFullError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
_SPARE = 100_000_000


def human(count: float) -> str:
    """A size as people write it: 310 kB, 4.7 MB, 15 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            value = count / scale
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count:.0f} B"


def files_of(path: Path) -> list[Path]:
    """A file itself, or all files of a folder."""
    return [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]


def sha256_of(path: Path) -> str:
    """The checksum of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_text(text: str) -> str:
    """The checksum of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


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


@contextlib.contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """Give the block a path where it makes a file or a folder, which takes the place of ``target``
    at the end: what is there is whole. Missing folders are made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        yield made
        made.replace(target)


_LINKS = 40  # one after another, as Linux has it
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|(\d+))(?:/task/\d+)?)/fd/(\d{1,6})")
_NO_FOLDER = "no such folder"
_MOST_NAME = 50  # characters of a name that the name of its partial file begins with


@dataclass(frozen=True, slots=True)
class _Target:
    """Destination of a path."""

    path: Path  # without links
    mode: int | None  # as `os.stat` has it; None where nothing is yet
    descriptor: int | None = None  # of this process

    @property
    def is_file(self) -> bool:
        """Whether it can be replaced."""
        return self.descriptor is None and (self.mode is None or stat.S_ISREG(self.mode))


def check_outfile(path: Path) -> None:
    """Look whether `outfile` can write ``path``, before any work is done for it. Raises OSError,
    whose ``strerror`` says what is wrong."""
    _target(path)


@contextlib.contextmanager
def outfile(
    path: Path, name: str | None = None, *, replace: bool = True, keep_same: bool = False
) -> Iterator[Path]:
    """Give the block an empty file to write to; at its end the content is where ``path`` leads. An
    error in the block leaves everything as it was, and so does a block that removes the file.

    ``name`` is that of the empty file, for whoever keeps others off; otherwise it is a new one.
    Without ``replace``, nothing may be at ``path``; with ``keep_same``, a file that has the content
    already is not replaced. Raises OSError: FileExistsError where something is in the way.
    """
    target = _target(path)
    if not replace and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with contextlib.ExitStack() as stack:
        if target.is_file:
            folder = target.path.parent
        else:  # beside a device there may be no room
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingot-out-")))
        start = target.path.name[:_MOST_NAME]
        partial = folder / (name or f".{start}.{secrets.token_hex(8)}.partial")
        stack.callback(_forget, partial)
        _make(partial, target.mode)
        yield partial
        if not partial.exists():
            return
        if target.is_file:
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            if keep_same and target.mode and filecmp.cmp(partial, target.path, shallow=False):
                return
            if replace:
                os.replace(partial, target.path)
            else:
                _put(partial, target.path)
            sync_folder(folder)
        else:
            with partial.open("rb") as source, os.fdopen(_open(target), "wb") as sink:
                shutil.copyfileobj(source, sink)


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _target(path: Path) -> _Target:
    """Follow the links at ``path``. Raises OSError for what cannot be written."""
    place = os.fspath(path)
    for _ in range(_LINKS):
        head, tail = os.path.split(place)
        try:
            place = os.path.join(os.path.realpath(head or os.curdir), tail)
        except FileNotFoundError:  # the working folder was deleted
            raise FileNotFoundError(errno.ENOENT, _NO_FOLDER, str(path)) from None
        found = _DESCRIPTOR.fullmatch(place)
        if found and found[1] in (None, str(os.getpid())):
            number = int(found[2])
            return _Target(Path(place), os.fstat(number).st_mode, number)
        if not os.path.islink(place):
            break
        place = os.path.join(os.path.dirname(place), os.readlink(place))
    else:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    try:
        mode = os.stat(place).st_mode
    except FileNotFoundError:
        mode = None
    target = _Target(Path(place), mode)
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file", str(path))
    if mode is not None and not (target.is_file or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        raise OSError(errno.ENOTSUP, "it is neither a file nor a pipe", str(path))
    if target.is_file and not target.path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, _NO_FOLDER, str(path))
    writable = mode is None or os.access(place, os.W_OK)
    if not writable or (target.is_file and not os.access(target.path.parent, os.W_OK | os.X_OK)):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return target


def _put(partial: Path, path: Path) -> None:
    """Give ``partial`` its name. Raises FileExistsError, also for a file that came this moment."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(partial, path)


def _make(partial: Path, mode: int | None) -> None:
    """Make an empty file, never through a link, with the permissions of the one at its place."""
    _forget(partial)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        if mode is not None and stat.S_ISREG(mode) and sys.platform != "win32":
            os.fchmod(descriptor, stat.S_IMODE(mode) | stat.S_IWUSR)
    finally:
        os.close(descriptor)


def _forget(partial: Path) -> None:
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


def _open(target: _Target) -> int:
    if target.descriptor is None:
        return os.open(target.path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0))
    for stream in (sys.stdout, sys.stderr):  # what was printed before comes first
        if stream is not None:
            stream.flush()
    return os.dup(target.descriptor)
