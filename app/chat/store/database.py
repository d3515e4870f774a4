"""The connections to one SQLite file.

Writing goes through one connection behind a lock. Each reading has a connection of its own: in WAL
mode a reader sees the last commit and waits for nobody, so that a search in one thread does not
hold up the answer that another is saving.
"""

import os
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import Connection

from app.chat.store.errors import StoreDamagedError, StoreError, explained
from app.chat.store.schema import MIGRATIONS, foreign_part
from app.chat.store.search import spaced
from runtimes.untrusted import visible

_BUSY_S = 5.0  # how long a write waits for the one of another process; they take milliseconds
_BESIDE = ("-wal", "-shm", "-journal")
_MOST_BYTES = 256 * 2**20  # of one value or row


class Database:
    """An open file. ``reading`` and ``writing`` may be used by any thread."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, made when it is not there, and bring its tables up to date.

        Raises StoreError for a file that a newer version wrote, that is something else, that is
        damaged, or that cannot be written.
        """
        self.path = path
        self._lock = threading.RLock()
        self._closed = False
        with explained(path):
            _make_private(path)
            self._writer = self._open()

    def _open(self) -> Connection:
        limit = time.monotonic() + _BUSY_S
        while True:
            db = connect(self.path)
            try:
                require_ours(db, self.path)
                if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                    raise StoreError(
                        "the disk of the chats does not let two programs share memory, as a network"
                        " disk may not; set INGOT_HOME to a folder on a local one"
                    )
                _migrate(db)
                return db
            except BaseException as error:
                db.close()
                # SQLite does not wait by itself while another process makes or closes the file.
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > limit:
                    raise
                time.sleep(0.02)

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Connection]:
        """A transaction: all of it is saved when the block ends, nothing when it raises.

        ``durable`` also waits until the disk has it (a power cut takes nothing back). Without, a
        process that is killed still loses nothing; that is for what is saved often.
        """
        with self._lock, explained(self.path):
            self._require_open()
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            with _transaction(self._writer):
                yield self._writer

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for reading; all of the block sees the same state of the file."""
        self._require_open()
        with explained(self.path), closing(connect(self.path)) as db:
            db.execute("PRAGMA query_only = ON")
            db.execute("BEGIN")
            yield db

    def close(self) -> None:
        """Close the file; closing twice does nothing. What another thread is reading is ended when
        it has read it."""
        with self._lock:
            self._closed = True
            self._writer.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed")


def connect(path: Path) -> Connection:
    """A connection to ``path`` with all that its tables need. Raises sqlite3.Error."""
    db = sqlite3.connect(
        path,
        timeout=_BUSY_S,
        isolation_level=None,  # transactions begin where this file says so
        check_same_thread=False,  # SQLite is built thread-safe; the lock here keeps the order
    )
    db.create_function("spaced", 1, _words, deterministic=True)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA cell_size_check = ON")  # finds a damaged page before it is used
    return db


def require_file(path: Path) -> None:
    """Raise StoreError where something else than a file is at ``path``, or at one of the names
    beside it that SQLite uses: it would wait for ever for a pipe."""
    real = Path(os.path.realpath(path))
    for one in (path, *(real.with_name(real.name + end) for end in _BESIDE)):
        with explained(one):
            try:
                mode = one.stat().st_mode
            except FileNotFoundError:
                continue
        if not stat.S_ISREG(mode):
            raise StoreError(
                f"{one} is no file, so that it cannot hold chats; move it away, or set INGOT_HOME"
                " to another folder"
            )


def _words(value: object) -> str:
    """Text of a column for the search index; a damaged file may hold any type."""
    return spaced(value) if isinstance(value, str) else ""


def _make_private(path: Path) -> None:
    """Let the owner alone read the database and the two files that SQLite puts beside it. An
    existing folder keeps its mode: it may be shared on purpose.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_file(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform != "win32" and os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _version(db: Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def require_ours(db: Connection, path: Path) -> None:
    """Refuse what is not ours to change, before anything is written to it or can run: raises
    StoreError for the file of a newer version and for what another program wrote, and
    StoreDamagedError for one with parts that Ingot did not make."""
    db.execute("BEGIN")  # both from one moment: another process may be making the tables
    with db:
        found = _version(db)
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if found > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer Ingot (its version is {found}, this one knows"
            f" {len(MIGRATIONS)}); it is left as it is: update Ingot, or set INGOT_HOME to another"
            " folder"
        )
    if found < 0 or (found == 0 and tables):
        raise StoreError(f"{path} is a database of another program; it is left as it is")
    part = foreign_part(db)
    if part is not None:
        raise StoreDamagedError(
            f"{path} has {visible(part)[:100]}, which Ingot did not make: it may have come from"
            " elsewhere; `ingot chats repair` sets the file aside and saves the chats in it"
        )


def _migrate(db: Connection) -> None:
    while _version(db) < len(MIGRATIONS):
        with _transaction(db):
            number = _version(db)  # another process may have done it while this one waited
            if number < len(MIGRATIONS):
                for statement in MIGRATIONS[number]:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number + 1}")


@contextmanager
def _transaction(db: Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    with db:  # which commits it, or rolls it back
        yield
