"""The files of a folder, one row each, its path below the folder as its id."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.batch.input import lines
from app.batch.input.row import Raw, Reader
from app.openai.validation import InputError, Problem
from runtimes.errors import RequestError


def _read(folder: Path, name: str) -> Iterator[Raw]:
    """A row for each file that is not hidden, at any depth, in the order of the paths' parts."""
    root = folder.resolve()
    for number, path in enumerate(_files(root, name), 1):
        relative = path.relative_to(root).as_posix()
        fields: dict[str, Any] = {"id": relative, "name": path.name}
        try:
            text = _text(path, root)
        except InputError as error:
            yield Raw(number, fields, error.problem)
        except OSError as error:
            reason = f"it cannot be read: {error.strerror or error}"
            yield Raw(number, fields, Problem("unreadable_file", reason))
        else:
            yield Raw(number, {**fields, "prompt": text})


def _listing(folder: Path, name: str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time (ns) of each file, to tell whether anything changed."""
    for path in _files(folder, name):
        try:
            status = path.stat()
        except OSError:  # a broken link
            yield str(path), -1, 0
        else:
            yield str(path), status.st_size, status.st_mtime_ns


def _files(folder: Path, name: str) -> Iterator[Path]:
    """Files and links, depth first; the names of one folder at each depth are held, which may be
    any number of folders deep."""
    open_ = [iter(_entries(folder, name))]
    while open_:
        entry = next(open_[-1], None)
        if entry is None:
            open_.pop()
        elif not entry.name.startswith("."):
            if entry.is_dir(follow_symlinks=False):
                open_.append(iter(_entries(Path(entry.path), name)))
            else:
                yield Path(entry.path)


def _entries(folder: Path, name: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise RequestError(f"{name}: {folder} cannot be listed: {error.strerror}") from error


def _text(path: Path, root: Path) -> str:
    """The file's text, unpacked where it is compressed. Raises InputError or OSError."""
    if path.is_symlink():
        try:
            target = path.resolve(strict=True)
        except RuntimeError as error:  # how Python 3.11 tells of links in a ring
            raise InputError("refused_link", "it is a link that leads nowhere") from error
        if not target.is_relative_to(root):
            raise InputError("refused_link", "it is a link that leads out of the folder")
        if target.is_dir():
            raise InputError("refused_link", "it is a link to a folder, which is not followed")
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError("unreadable_file", "it is not a regular file")
    with lines.InputStream(path, str(path)) as stream:
        data = stream.read(lines.MAX_LINE + 1)
    if len(data) > lines.MAX_LINE:
        raise lines.too_long("file")
    return lines.decode(data.removeprefix(lines.UTF8_BOM), "file")


FOLDER = Reader(
    "folder", _read, "put a text file for each prompt into it", place="file {id}", listing=_listing
)
