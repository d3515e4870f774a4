"""The connections to one SQLite file.

Writing goes through one connection behind a lock. Reading takes a connection of its own from a
small pool: in WAL mode a reader sees the last commit and waits for nobody, so that a search in one
thread does not hold up the answer that another is saving. A connection a thread would do that too,
but threads of a worker pool come and go, and nobody closes their connections.
"""

import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.chat.store.errors import StoreError, explained
from app.chat.store.schema import MIGRATIONS, SQL_FUNCTIONS

_BUSY_S = 5.0  # how long a write waits for the one of another process; they take milliseconds
_OLDEST = (3, 35, 0)  # RETURNING


class Database:
    """An open file. ``reading`` and ``writing`` may be used by any thread."""

    def __init__(self, path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
        """Open ``path``, made when it is not there, and bring its tables up to date.

        Raises StoreError for a file that a newer version wrote, that is something else, that is
        damaged, or that cannot be written.
        """
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StoreError(
                f"this Python has SQLite {sqlite3.sqlite_version}; chats need"
                f" {'.'.join(map(str, _OLDEST))}: use a newer Python"
            )
        self.path = path
        self._lock = threading.RLock()
        self._readers: list[sqlite3.Connection] = []
        self._pool_lock = threading.Lock()
        self._closed = False
        with explained(path):
            _make_private(path)
            self._writer = self._open(migrations)

    def _open(self, migrations: Sequence[Sequence[str]]) -> sqlite3.Connection:
        limit = time.monotonic() + _BUSY_S
        while True:
            db = self._connect()
            try:
                require_ours(db, self.path, len(migrations))
                _set_wal(db)
                _migrate(db, migrations)
                return db
            except sqlite3.OperationalError as error:
                db.close()
                # SQLite does not wait by itself while another process makes or closes the file.
                code = getattr(error, "sqlite_errorcode", 0)
                if code & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > limit:
                    raise
                time.sleep(0.02)
            except BaseException:
                db.close()
                raise

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is saved when the block ends, nothing when it raises.

        ``durable`` also waits until the disk has it (a power cut takes nothing back). Without, a
        process that is killed still loses nothing; that is for what is saved often.
        """
        with self._lock, explained(self.path):
            self._require_open()
            db = self._writer
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            with _transaction(db):
                yield db

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading; all of the block sees the same state of the file."""
        with explained(self.path):
            with self._pool_lock:
                self._require_open()
                db = self._readers.pop() if self._readers else self._connect(readonly=True)
            try:
                db.execute("BEGIN")
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                with self._pool_lock:
                    if self._closed:
                        db.close()
                    else:
                        self._readers.append(db)

    def close(self) -> None:
        """Close the file. What another thread is reading is ended when it has read it."""
        with self._lock, self._pool_lock:
            if self._closed:
                return
            self._closed = True
            for db in self._readers:
                db.close()
            self._readers.clear()
            self._writer.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed")

    def _connect(self, *, readonly: bool = False) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path,
            timeout=_BUSY_S,
            isolation_level=None,  # transactions begin where this file says so
            check_same_thread=False,  # SQLite is built thread-safe; the locks here keep the order
        )
        for name, count, function in SQL_FUNCTIONS:
            db.create_function(name, count, function, deterministic=True)
        db.execute("PRAGMA foreign_keys = ON")
        if readonly:
            db.execute("PRAGMA query_only = ON")
        return db


def _make_private(path: Path) -> None:
    """Chats are nobody else's business: the file is readable by its owner alone, and so are the
    two that SQLite puts beside it, which get its rights. A folder that is there stays as it is: it
    may be shared on purpose."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform != "win32" and os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def require_ours(db: sqlite3.Connection, path: Path, newest: int = len(MIGRATIONS)) -> None:
    """Refuse what is not ours to change, before anything is written to it: raises StoreError for a
    version above ``newest`` and for what another program wrote."""
    db.execute("BEGIN")  # both from one moment: another process may be making the tables
    try:
        found = _version(db)
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    finally:
        db.execute("ROLLBACK")
    if found > newest:
        raise StoreError(
            f"{path} was written by a newer Ingot (its version is {found}, this one knows"
            f" {newest}); it is left as it is: update Ingot, or set INGOT_HOME to another folder"
        )
    if found == 0 and tables:
        raise StoreError(f"{path} is a database of another program; it is left as it is")


def _set_wal(db: sqlite3.Connection) -> None:
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(
            "the disk of the chats does not let two programs share memory, as a network disk may"
            " not; set INGOT_HOME to a folder on a local one"
        )


def _migrate(db: sqlite3.Connection, migrations: Sequence[Sequence[str]]) -> None:
    while _version(db) < len(migrations):
        with _transaction(db):
            number = _version(db)  # another process may have done it while this one waited
            if number < len(migrations):
                for statement in migrations[number]:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number + 1}")


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
