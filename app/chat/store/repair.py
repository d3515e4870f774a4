"""Saving what can be read of a damaged file, when the user asks for it."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection

from app.chat.store.database import Database, connect, require_file, require_ours
from app.chat.store.errors import StoreDamagedError, StoreError, damage_passed_over, explained
from app.chat.store.rows import CHAT, MESSAGE, MOST_ID, chat_of, insert, message_of
from app.here import numbered

_BESIDE = ("", "-wal", "-shm")  # a database is these three
_COPIED = ("chats", "messages", "pieces", "drafts")
_RECORDS = ((CHAT, "chats", chat_of), (MESSAGE, "messages", message_of))
_MOST_IDS = 10_000_000  # an id above is itself damage
_MOST_LOST = 100_000  # ids one after another that cannot be read; nothing is looked for behind
# What a row is given in place of values that make no sense, so that the rest of it is kept.
_TIME = "CASE WHEN created BETWEEN 0 AND :now THEN created ELSE :now END"
_INSTEAD = {
    "chats": f"title = CASE typeof(title) WHEN 'text' THEN title ELSE '' END, created = {_TIME},"
    " updated = :now, model = NULL, system = NULL, sampling = '{}', leaf = NULL, raw = 0,"
    " tools = '{}'",
    "messages": f"created = {_TIME}, figures = NULL, attachments = NULL, token_ids = x'', dropped ="
    " 0, model = NULL, file = NULL, runtime = NULL, error = NULL, calls = NULL, state = CASE WHEN"
    " state = 'streaming' THEN state WHEN role = 'user' THEN 'done' ELSE 'lost' END",
}


@dataclass(frozen=True, slots=True)
class Repaired:
    """Result of a repair. ``aside`` is the damaged file's new path, None when the file was whole;
    ``chats`` and ``messages`` count the rows of the file in place.
    """

    aside: Path | None
    chats: int
    messages: int


def is_whole(path: Path) -> bool:
    """Whether everything in the file can be read.

    Raises StoreError for one that is not ours, and for one that cannot be looked at: another
    program holds it, rights are missing, the disk fails. None of this is damage.
    """
    require_file(path)
    try:
        with explained(path), closing(connect(path)) as db:
            require_ours(db, path)
            found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            for columns, table, read in _RECORDS:
                for row in db.execute(f"SELECT {columns} FROM {table}"):
                    read(row)
            return found == "ok" and db.execute("PRAGMA foreign_key_check").fetchone() is None
    except StoreDamagedError:
        return False


def repair(path: Path) -> Repaired:
    """Set a damaged file aside and put one at its place with all that can be read of it. A whole
    one stays; its index is made anew.

    Raises StoreError: there is no file, it is not ours, it cannot be read for another reason than
    damage, another program has it open, or the disk has no room for a second one; nothing has
    changed then. A link stays; what it leads to is repaired.
    """
    path = Path(os.path.realpath(path))
    if not path.exists():
        raise StoreError(f"there is no {path}")
    if is_whole(path):
        with closing(Database(path)) as database:
            return Repaired(None, *_indexed_anew(database))
    fresh = path.with_name(f".{path.name}.repaired")
    with explained(path):
        _remove(fresh)
        try:
            with closing(Database(fresh)) as database:
                # What is too damaged to be read leaves it empty.
                with _alone(path) as old, database.writing() as db:
                    db.execute("PRAGMA defer_foreign_keys = ON")
                    for table in _COPIED:
                        with damage_passed_over():
                            _copy_table(old, db, table)
                    _mend(db)
                counts = _indexed_anew(database)
            aside = _swap(path, fresh)
        except BaseException:
            with suppress(OSError):
                _remove(fresh)
            raise
    return Repaired(aside, *counts)


def _remove(path: Path) -> None:
    for end in _BESIDE:
        path.with_name(path.name + end).unlink(missing_ok=True)


def _swap(path: Path, fresh: Path) -> Path:
    """Rename the damaged file to a name that is free, which is returned, and put ``fresh`` at its
    place. Raises OSError, with everything as it was."""
    stem = f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    names = map(path.with_name, numbered(stem))
    aside = next(one for one in names if not os.path.lexists(one))
    moved: list[tuple[Path, Path]] = []
    try:
        for end in reversed(_BESIDE):
            part, target = path.with_name(path.name + end), aside.with_name(aside.name + end)
            if part.exists():
                part.rename(target)
                moved.append((part, target))
        fresh.rename(path)
    except BaseException:
        for part, target in moved:
            target.rename(part)
        raise
    return aside


@contextmanager
def _alone(path: Path) -> Iterator[Connection]:
    """A connection to a damaged file that no other process has open. Raises sqlite3.Error when one
    has."""
    with closing(connect(path)) as db:
        # What the file says is data here, never something to run.
        db.execute("PRAGMA trusted_schema = OFF")
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        with damage_passed_over():
            # Of a file with a write-ahead log, no other connection may be open then.
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("BEGIN EXCLUSIVE")
        yield db


def _copy_table(old: Connection, db: Connection, table: str) -> None:
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ? AND rootpage > 0"
    if not old.execute(query, (table,)).fetchone()[0]:
        return  # not there; or a view, which could be anything
    # Columns that SQLite computes (hidden 2 and 3) could be anything too.
    known = [row[1] for row in old.execute(f"PRAGMA table_xinfo({table})") if not row[6]]
    wanted = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    names = [name for name in wanted if name in known]
    for row in _rows(old, table, ", ".join(names)) if names[:1] == ["id"] else ():
        # What is there already, or makes no sense, is passed over.
        with suppress(sqlite3.IntegrityError):
            insert(db, table, dict(zip(names, row, strict=True)))


def _rows(db: Connection, table: str, columns: str) -> Iterator[tuple[object, ...]]:
    """The rows that can be read, by rising id; ``columns`` begins with it."""
    last, top, lost = 0, _highest_id(db, table), 0
    query = f"SELECT {columns} FROM {table} NOT INDEXED WHERE id > ? AND id < ? ORDER BY id"
    while last < top and lost < _MOST_LOST:
        with damage_passed_over():
            for row in db.execute(query, (last, MOST_ID)):
                yield row
                last, lost = row[0], 0
            last = MOST_ID  # there are no more
        last, lost = last + 1, lost + 1  # until what is asked for lies behind the damage


def _highest_id(db: Connection, table: str) -> int:
    for query in (
        f"SELECT max(id) FROM {table}",
        f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'",
    ):
        with damage_passed_over():
            row = db.execute(query).fetchone()
            if row is not None and isinstance(row[0], int):
                return min(row[0], _MOST_IDS)
    return _MOST_IDS


def _mend(db: Connection) -> None:
    """Re-parent orphaned messages; reset values that make no sense, and delete rows that still
    make none."""
    now = time.time()
    db.execute(
        "DELETE FROM messages WHERE typeof(chat) <> 'integer' OR chat NOT BETWEEN 1 AND ?",
        (MOST_ID,),
    )
    db.execute(
        "INSERT INTO chats (id, title, created, updated)"
        " SELECT DISTINCT chat, 'Recovered chat ' || chat, ?, ? FROM messages"
        " WHERE chat NOT IN (SELECT id FROM chats)",
        (now, now),
    )
    # Alone, so that a broken one does not take the others of its row with it.
    for table, column, instead in (
        ("chats", "sampling", "'{}'"),
        ("chats", "tools", "'{}'"),
        ("messages", "figures", "NULL"),
        ("messages", "attachments", "NULL"),
        ("messages", "calls", "NULL"),
    ):
        db.execute(f"UPDATE {table} SET {column} = {instead} WHERE NOT json_valid({column})")
    # A message is younger than what it answers: one that is not would make a ring.
    db.execute("UPDATE messages SET parent = NULL WHERE NOT parent < id")
    for columns, table, read in _RECORDS:
        for (id,) in db.execute(f"SELECT id FROM {table}").fetchall():
            for change in (f"UPDATE {table} SET {_INSTEAD[table]}", f"DELETE FROM {table}"):
                row = db.execute(f"SELECT {columns} FROM {table} WHERE id = ?", (id,)).fetchone()
                try:
                    read(row)
                    break
                except StoreDamagedError:
                    db.execute(f"{change} WHERE id = :id", {"id": id, "now": now})
    kept = "typeof(text) = 'text'"
    pieces = f"{kept} AND typeof(token_ids) = 'blob' AND message IN (SELECT id FROM messages)"
    db.execute(f"DELETE FROM pieces WHERE NOT ({pieces})")
    db.execute(f"DELETE FROM drafts WHERE NOT ({kept} AND id IN (SELECT id FROM chats))")
    db.execute(
        "UPDATE messages SET parent = NULL WHERE parent IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM messages AS one WHERE one.chat = messages.chat AND one.id ="
        " messages.parent)"
    )
    db.execute(
        "UPDATE chats SET leaf = (SELECT max(id) FROM messages WHERE chat = chats.id)"
        " WHERE coalesce(leaf, 0) NOT IN (SELECT id FROM messages WHERE chat = chats.id)"
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
