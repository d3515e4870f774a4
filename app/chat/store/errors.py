"""Errors of the chat store, with messages that say what to do."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
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
_HELD = "{path} is held by another program ({error}); nothing was changed, try again"
_LARGE = "{path} holds a value that is too large ({error}); `ingot chats repair` leaves it out"
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
    sqlite3.SQLITE_TOOBIG: (StoreDamagedError, _LARGE),
}


@contextmanager
def damage_passed_over() -> Iterator[None]:
    """End the block where SQLite finds the contents of a file wrong. An error of any other kind
    (held by another program, no rights, a failing or full disk) says nothing of what is in the
    file, and is raised."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if _OF_SQLITE.get(_kind(error), (StoreError,))[0] is not StoreDamagedError:
            raise


def _kind(error: sqlite3.Error | UnicodeDecodeError) -> int:
    """The low byte of SQLite's code; damage also for what has no code of its own."""
    said = str(error)
    # The first is of a message that quotes a damaged file. The second is said by Python, without a
    # code; the others are of a file that lacks what its version has.
    if (
        isinstance(error, UnicodeDecodeError)
        or "Could not decode to UTF-8" in said
        or said.startswith(("no such table:", "no such column:"))
    ):
        return sqlite3.SQLITE_CORRUPT
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system say about ``path`` into a StoreError."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        kind, said = _OF_SQLITE.get(_kind(error), (StoreError, "{path}: {error}"))
        raise kind(said.format(path=path, error=error)) from error
    except OverflowError as error:  # of a number beyond 64 bits
        raise StoreError("there is no chat or message of so large a number") from error
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"the disk of {path} is full: {_SPACE}") from error
        raise StoreError(
            f"{path} cannot be used: {error.strerror or error}; check the permissions of its"
            " folder, or set INGOT_HOME to another one"
        ) from error
