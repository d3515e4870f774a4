"""What can go wrong with the store, told so that the user knows what to do."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from runtimes.errors import IngotError


class StoreError(IngotError):
    """The chats cannot be read or written, or what was asked for is not among them."""

    exit_code = 2


class StoreFullError(StoreError):
    """The disk of the chats is full; what was there is untouched."""

    exit_code = 4


class StoreDamagedError(StoreError):
    """The file of the chats is not one, or is damaged."""


_SPACE = "make room, or set INGOT_HOME to a folder on another disk"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say about ``path`` into a StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise _of_sqlite(path, error) from error
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"the disk of {path} is full: {_SPACE}") from error
        raise StoreError(
            f"{path} cannot be used: {error.strerror or error}; check the permissions of its"
            " folder, or set INGOT_HOME to another one"
        ) from error


def _of_sqlite(path: Path, error: sqlite3.Error) -> StoreError:
    # The low byte is the kind, the others tell more (https://sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", 0) or 0
    if "Could not decode to UTF-8" in str(error):  # said by Python, without a code
        code = sqlite3.SQLITE_CORRUPT
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StoreFullError(
                f"the disk of {path} is full: {_SPACE}; what was saved before is there"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreFullError(
                f"{path} could not be written or read ({error}): the disk is full or failing;"
                f" {_SPACE}; what was saved before is there"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreError(
                f"{path} cannot be written ({error}); check the permissions of the file and its"
                " folder, or set INGOT_HOME to another one"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreDamagedError(
                f"{path} is damaged ({error}); `ingot chats repair` sets it aside and saves what"
                " can be read of it"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreError(
                f"{path} is held by another program ({error}); nothing was saved, try again"
            )
        case _:
            return StoreError(f"{path}: {error}")
