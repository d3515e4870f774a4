"""Saving what can be read of a damaged file, when the user asks for it."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.chat.store.database import Database, connect, require_ours
from app.chat.store.errors import StoreDamagedError, StoreError, explained
from app.chat.store.rows import CHAT, MESSAGE, chat_of, insert, message_of

_BESIDE = ("", "-wal", "-shm")  # a database is these three
_COPIED = ("chats", "messages", "pieces", "drafts")
_RECORDS = ((CHAT, "chats", chat_of), (MESSAGE, "messages", message_of))
_MOST_IDS = 10_000_000  # an id above is itself damage


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was done. ``aside`` is where the damaged file is now, None when it was whole; ``chats``
    and ``messages`` are counts of what the file at its place holds."""

    aside: Path | None
    chats: int
    messages: int


def is_whole(path: Path) -> bool:
    """Whether everything in the file can be read. Raises StoreError for one that is not ours."""
    try:
        with contextlib.closing(connect(path)) as db:
            require_ours(db, path)
            found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            for columns, table, read in _RECORDS:
                for row in db.execute(f"SELECT {columns} FROM {table}"):
                    read(row)
            return bool(found == "ok")
    except (sqlite3.DatabaseError, StoreDamagedError):
        return False


def repair(path: Path) -> Repaired:
    """Set a damaged file aside and put one at its place with all that can be read of it. A whole
    one stays; its index is made anew.

    Raises StoreError: there is no file, it is not ours, or the disk has no room for a second one;
    nothing has changed then. No other Ingot may be running.
    """
    if not path.exists():
        raise StoreError(f"there is no {path}")
    if is_whole(path):
        with contextlib.closing(Database(path)) as database:
            return Repaired(None, *_indexed_anew(database))
    fresh = path.with_name(f".{path.name}.repaired")
    _remove(fresh)
    try:
        with contextlib.closing(Database(fresh)) as database:
            _copy(path, database)
            counts = _indexed_anew(database)
    except BaseException:
        _remove(fresh)
        raise
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    with explained(path):
        for end in reversed(_BESIDE):
            part = path.with_name(path.name + end)
            if part.exists():
                part.rename(aside.with_name(aside.name + end))
        fresh.rename(path)
    return Repaired(aside, *counts)


def _remove(path: Path) -> None:
    for end in _BESIDE:
        path.with_name(path.name + end).unlink(missing_ok=True)


def _copy(damaged: Path, database: Database) -> None:
    """Into an empty database. What cannot be read at all leaves it empty."""
    with database.writing() as db:
        db.execute("PRAGMA defer_foreign_keys = ON")
        with (
            contextlib.suppress(sqlite3.DatabaseError),
            contextlib.closing(connect(damaged)) as old,
        ):
            old.text_factory = lambda data: data.decode("utf-8", "replace")
            for table in _COPIED:
                known, wanted = (
                    [row[1] for row in one.execute(f"PRAGMA table_info({table})")]
                    for one in (old, db)
                )
                names = [name for name in wanted if name in known]
                for row in _rows(old, table, ", ".join(names)) if names else ():
                    # What is there already, or makes no sense, is passed over.
                    with contextlib.suppress(sqlite3.IntegrityError):
                        insert(db, table, dict(zip(names, row, strict=True)))
        _mend(db)


def _rows(db: sqlite3.Connection, table: str, columns: str) -> Iterator[tuple[object, ...]]:
    """The rows that can be read, by rising id; ``columns`` begins with it."""
    last, top = 0, _highest_id(db, table)
    while last < top:
        query = f"SELECT {columns} FROM {table} NOT INDEXED WHERE id > ? ORDER BY id"
        try:
            for row in db.execute(query, (last,)):
                yield row
                last = row[0]
            return
        except sqlite3.DatabaseError:
            last += 1  # until what is asked for lies behind the damage


def _highest_id(db: sqlite3.Connection, table: str) -> int:
    for query in (
        f"SELECT max(id) FROM {table}",
        f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'",
    ):
        with contextlib.suppress(sqlite3.DatabaseError):
            row = db.execute(query).fetchone()
            if row is not None and isinstance(row[0], int):
                return min(row[0], _MOST_IDS)
    return _MOST_IDS


def _mend(db: sqlite3.Connection) -> None:
    """Give what has lost its chat or its parent a place, and drop what makes no sense."""
    now = time.time()
    db.execute(
        "INSERT INTO chats (id, title, created, updated)"
        " SELECT DISTINCT chat, 'Recovered chat ' || chat, ?, ? FROM messages"
        " WHERE chat NOT IN (SELECT id FROM chats)",
        (now, now),
    )
    for table, column, instead in (
        ("chats", "sampling", "'{}'"),
        ("messages", "figures", "NULL"),
        ("messages", "attachments", "NULL"),
    ):
        db.execute(f"UPDATE {table} SET {column} = {instead} WHERE NOT json_valid({column})")
    for columns, table, read in _RECORDS:
        for (id,) in db.execute(f"SELECT id FROM {table}").fetchall():
            try:
                read(db.execute(f"SELECT {columns} FROM {table} WHERE id = ?", (id,)).fetchone())
            except StoreDamagedError:
                db.execute(f"DELETE FROM {table} WHERE id = ?", (id,))
    db.execute("DELETE FROM pieces WHERE message NOT IN (SELECT id FROM messages)")
    db.execute("DELETE FROM drafts WHERE id NOT IN (SELECT id FROM chats)")
    db.execute(
        "UPDATE messages SET parent = NULL WHERE parent IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM messages AS one WHERE one.chat = messages.chat AND one.id ="
        " messages.parent)"
    )
    db.execute(
        "UPDATE chats SET leaf = (SELECT max(id) FROM messages WHERE chat = chats.id)"
        " WHERE leaf NOT IN (SELECT id FROM messages WHERE chat = chats.id)"
    )


def _indexed_anew(database: Database) -> tuple[int, int]:
    """The numbers of chats and messages, once the search index has been made of them."""
    with database.writing() as db:
        for table in ("messages_fts", "chats_fts"):
            db.execute(f"INSERT INTO {table} ({table}) VALUES ('rebuild')")
        chats, messages = (
            db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("chats", "messages")
        )
        return chats, messages
