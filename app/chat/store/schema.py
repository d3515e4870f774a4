"""The tables. A migration that was released is never changed; a new one is added at the end.

``PRAGMA user_version`` is the number of migrations that a file has been through.
"""

import re
import sqlite3
from contextlib import closing
from functools import cache
from itertools import chain

_NOT_COMPARED = re.compile(r"[\s\"'`]+")

_CHATS = (
    # AUTOINCREMENT: what was deleted for good must not give its number to something new.
    """CREATE TABLE chats (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        title TEXT NOT NULL DEFAULT '',
        created REAL NOT NULL,
        updated REAL NOT NULL,
        model TEXT,
        system TEXT,
        sampling TEXT NOT NULL DEFAULT '{}',
        leaf INTEGER,
        deleted_at REAL
    )""",
    "CREATE INDEX chats_by_age ON chats (updated DESC, id DESC)",
    # What a message says is its text and then its pieces. The parent has no ON DELETE: a message
    # that others follow goes only with its chat, and a cascade down a long chain would exceed
    # SQLite's depth of 1000.
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        chat INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        parent INTEGER,
        role TEXT NOT NULL,
        state TEXT NOT NULL,
        created REAL NOT NULL,
        dropped INTEGER NOT NULL DEFAULT 0,
        model TEXT,
        file TEXT,
        runtime TEXT,
        figures TEXT,
        error TEXT,
        owner_pid INTEGER,
        owner_born REAL,
        attachments TEXT,
        text TEXT NOT NULL,
        token_ids BLOB NOT NULL DEFAULT x'',
        UNIQUE (chat, id),
        FOREIGN KEY (chat, parent) REFERENCES messages (chat, id) DEFERRABLE INITIALLY DEFERRED
    )""",
    "CREATE INDEX messages_by_parent ON messages (chat, parent)",
    "CREATE INDEX messages_streaming ON messages (id) WHERE state = 'streaming'",
    # An answer that streams, as it was saved last; of older versions, what came with each save.
    """CREATE TABLE pieces (
        id INTEGER PRIMARY KEY,
        message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        text TEXT NOT NULL,
        token_ids BLOB NOT NULL
    )""",
    "CREATE INDEX pieces_by_message ON pieces (message, id)",
)


def _index(table: str, view: str, column: str) -> tuple[str, ...]:
    """A search index of one column. It holds words only, and reads the texts from a view when it is
    checked or rebuilt.

    prefix='1 2': one or two letters while typing begin many words that are in nearly every message;
    without it they took 120 ms among 100,000 messages. Each further length makes the index larger
    by a third, for less and less.
    """
    fts = f"{table}_fts"
    add = f"INSERT INTO {fts} (rowid, {column}) VALUES (new.id, spaced(new.{column}));"
    drop = (
        f"INSERT INTO {fts} ({fts}, rowid, {column})"
        f" VALUES ('delete', old.id, spaced(old.{column}));"
    )
    return (
        f"CREATE VIEW {view} AS SELECT id, spaced({column}) AS {column} FROM {table}",
        f"CREATE VIRTUAL TABLE {fts} USING fts5 ( {column}, content='{view}', content_rowid='id',"
        " tokenize='unicode61 remove_diacritics 2', prefix='1 2' )",
        f"CREATE TRIGGER {fts}_insert AFTER INSERT ON {table} BEGIN {add} END",
        f"CREATE TRIGGER {fts}_delete AFTER DELETE ON {table} BEGIN {drop} END",
        f"CREATE TRIGGER {fts}_update AFTER UPDATE OF {column} ON {table}"
        f" WHEN old.{column} <> new.{column} BEGIN {drop} {add} END",
        f"INSERT INTO {fts} ({fts}) VALUES ('rebuild')",
    )


# What was typed in a chat and not sent; ``id`` is the chat's.
_DRAFTS = (
    """CREATE TABLE drafts (
        id INTEGER PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
        text TEXT NOT NULL
    )""",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    _CHATS,
    (*_index("messages", "message_words", "text"), *_index("chats", "chat_words", "title")),
    _DRAFTS,
    ("ALTER TABLE chats ADD COLUMN raw INTEGER NOT NULL DEFAULT 0",),
    (
        "ALTER TABLE chats ADD COLUMN tools TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE messages ADD COLUMN calls TEXT",
    ),
)


_PARTS = "SELECT type, lower(name), sql FROM sqlite_master WHERE sql IS NOT NULL"


def foreign_part(db: sqlite3.Connection) -> str | None:
    """Name a table, view, trigger or index that ``MIGRATIONS`` did not make, such as "a trigger
    called x"; None if there is none. SQLite would run such a part within Ingot's statements, and a
    file may come from anywhere. Plain tables beside Ingot's are never read, and therefore allowed.
    """
    made = _made()
    for kind, name, sql in db.execute(_PARTS):
        expected = made.get(name)
        if expected is None and kind == "table" and not re.match(r"\s*CREATE\s+VIRTUAL", sql, re.I):
            continue
        if expected is None or _plain(sql) not in expected:
            return f"{'an' if kind == 'index' else 'a'} {kind} called {name}"
    return None


@cache
def _made() -> dict[str, set[str]]:
    """By name, what SQLite keeps as a part's statement after one migration or another."""
    made: dict[str, set[str]] = {}
    with closing(sqlite3.connect(":memory:")) as db:
        db.create_function("spaced", 1, str)
        for statement in chain.from_iterable(MIGRATIONS):
            db.execute(statement)
            for kind, name, sql in db.execute(_PARTS):
                if kind == "table" and "_fts_" in name:
                    continue  # made by FTS5 beside its own, in one way or another
                made.setdefault(name, set()).add(_plain(sql))
    return made


def _plain(sql: str) -> str:
    return _NOT_COMPARED.sub("", sql).lower()
