"""What can go wrong with the store, told so that the user knows what to do."""

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
_RIGHTS = (
    "{path} cannot be written ({error}); check the permissions of the file and its folder, or set"
    " INGOT_HOME to another one"
)
_DAMAGED = (
    "{path} is damaged ({error}); `ingot chats repair` sets it aside and saves what can be read of"
    " it"
)
_HELD = "{path} is held by another program ({error}); nothing was saved, try again"
# By the low byte of SQLite's code, which is the kind (https://sqlite.org/rescode.html).
_OF_SQLITE: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_FULL: (
        StoreFullError,
        f"the disk of {{path}} is full: {_SPACE}; what was saved before is there",
    ),
    sqlite3.SQLITE_IOERR: (
        StoreFullError,
        "{path} could not be written or read ({error}): the disk is full or failing;"
        f" {_SPACE}; what was saved before is there",
    ),
    sqlite3.SQLITE_READONLY: (StoreError, _RIGHTS),
    sqlite3.SQLITE_CANTOPEN: (StoreError, _RIGHTS),
    sqlite3.SQLITE_PERM: (StoreError, _RIGHTS),
    sqlite3.SQLITE_CORRUPT: (StoreDamagedError, _DAMAGED),
    sqlite3.SQLITE_NOTADB: (StoreDamagedError, _DAMAGED),
    sqlite3.SQLITE_BUSY: (StoreError, _HELD),
    sqlite3.SQLITE_LOCKED: (StoreError, _HELD),
}


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say about ``path`` into a StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) or 0
        if "Could not decode to UTF-8" in str(error):  # said by Python, without a code
            code = sqlite3.SQLITE_CORRUPT
        kind, said = _OF_SQLITE.get(code & 0xFF, (StoreError, "{path}: {error}"))
        raise kind(said.format(path=path, error=error)) from error
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"the disk of {path} is full: {_SPACE}") from error
        raise StoreError(
            f"{path} cannot be used: {error.strerror or error}; check the permissions of its"
            " folder, or set INGOT_HOME to another one"
        ) from error
