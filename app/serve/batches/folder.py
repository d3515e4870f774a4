"""The folder in which a server keeps its files and batches: one server each. Each entry is written
beside its place and renamed, so that a kill at any moment leaves the old content or the new.

Others may have put anything there: only names that a server makes are read or removed, only plain
files are opened, and no link is followed.
"""

import errno
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from app.batch.output.records import writing
from quantize.disk import sync_folder
from runtimes.errors import RequestError
from runtimes.machine.locks import Lock, holder_of
from runtimes.paths import data_dir
from runtimes.untrusted import inside, is_link, visible

logger = logging.getLogger(__name__)

FILES, BATCHES = "files", "batches"  # folders in it
FILE_ID = re.compile(r"\Afile-[0-9a-f]{24}\Z")
BATCH_ID = re.compile(r"\Abatch_[0-9a-f]{24}\Z")
_MODE = 0o700  # prompts and answers are the user's own
_UNFINISHED = "."  # how names begin of what was being written or taken away
_OF_SYSTEMS = frozenset({"lost+found", ".DS_Store", "Thumbs.db", "desktop.ini"})
_MOST_TOLD = 5


@contextmanager
def claimed(data: Path | None = None) -> Iterator[Path]:
    """``data``, or the usual folder, made if need be and kept from other servers within the block.

    Raises RequestError when another one has it, it cannot be written, or it is a folder of
    something else; OutOfMemoryError for a full disk.
    """
    data = data_dir() / "serve" if data is None else data
    with writing(data):
        data.mkdir(_MODE, parents=True, exist_ok=True)
        stranger = _stranger(data)
    if stranger is not None:
        raise RequestError(
            f"{data} is no data folder of ingot serve: it has"
            f" {visible(str(stranger.relative_to(data)))}. Name an empty folder with --data, or one"
            " that is not there yet"
        )
    with _locked(data):
        yield data


def _locked(data: Path) -> Lock:
    try:
        return Lock(data)
    except BlockingIOError as error:
        holder = holder_of(data)
        said = "another server" if holder is None else f"another server (process {holder})"
        raise RequestError(
            f"{data} is in use by {said}: its files and batches are there; "
            "name another folder with --data"
        ) from error
    except OSError as error:
        raise RequestError(f"{data} cannot be locked: {error.strerror or error}") from error


def _stranger(data: Path) -> Path | None:
    """Return an entry of ``data`` that no server made; None for a folder of a server, or an empty
    one."""
    found = []
    for path in data.iterdir():
        if path.name in (FILES, BATCHES) and is_folder(path):
            for entry in path.iterdir():
                name = entry.name.removeprefix(_UNFINISHED)
                if FILE_ID.fullmatch(name) or BATCH_ID.fullmatch(name):
                    return None
                found.append(entry)
        else:
            found.append(path)
    return min((path for path in found if path.name not in _OF_SYSTEMS), default=None)


def prepare(folder: Path, own: re.Pattern[str]) -> list[Path]:
    """The folders in ``folder`` that are called as ``own`` says. ``folder`` is made if need be, and
    what was never finished is removed; anything else is left alone.

    Raises RequestError or OutOfMemoryError where ``folder`` is a link or cannot be written.
    """
    found, strangers = [], []
    with writing(folder):
        inside(folder.parent, folder.name, "the data folder", RequestError)
        folder.mkdir(_MODE, exist_ok=True)
        for path in sorted(folder.iterdir()):
            unfinished = path.name.startswith(_UNFINISHED)
            if not (own.fullmatch(path.name.removeprefix(_UNFINISHED)) and is_folder(path)):
                strangers.append(path)
            elif unfinished:
                shutil.rmtree(path, ignore_errors=True)
            else:
                found.append(path)
    for path in strangers[:_MOST_TOLD]:
        logger.warning("%s is nothing that a server made; it is left alone", visible(str(path)))
    if len(strangers) > _MOST_TOLD:
        more = len(strangers) - _MOST_TOLD
        logger.warning("%s: %d more are left alone", visible(str(folder)), more)
    return found


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder itself: a link to one is not."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode) and not is_link(path)
    except OSError:
        return False


def open_plain(path: Path) -> BinaryIO:
    """``path`` for reading. Raises OSError, also for what is no plain file: a link would lead out
    of the folder, and a pipe or a device never end."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):  # a system may lack one of them
        flags |= getattr(os, name, 0)
    if is_link(path):
        raise OSError(errno.ELOOP, "it is a link")
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_plain(path: Path, name: str) -> bool:
    """Whether there is a file ``path``, which messages call ``name``. Raises RequestError for what
    is no plain file."""
    try:
        open_plain(path).close()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error.strerror or error}") from error
    return True


def replace_plain(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of what the file ``path`` holds: a reader finds the old content or
    the new, also after a power cut. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:  # follows no link
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """Make the place in which a new ``folder`` is written, which goes if the block fails; ``put``
    renames it."""
    path = folder.with_name(_UNFINISHED + folder.name)
    path.mkdir(_MODE)
    try:
        yield path
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def put(made: Path, folder: Path) -> None:
    """Make what is in ``made`` last, as ``folder``. Its files are on the disk already."""
    sync_folder(made)
    made.rename(folder)
    sync_folder(folder.parent)


def remove(folder: Path) -> None:
    """Take a folder away, all at once."""
    gone = folder.with_name(_UNFINISHED + folder.name)
    folder.rename(gone)
    sync_folder(folder.parent)
    shutil.rmtree(gone, ignore_errors=True)
