"""The tables. A migration that was released is never changed; a new one is added at the end.

``PRAGMA user_version`` is the number of migrations that a file has been through.
"""

from collections.abc import Callable

from app.chat.store.search import spaced

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
    # The journal of an answer that streams: what came since the last save.
    """CREATE TABLE pieces (
        id INTEGER PRIMARY KEY,
        message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        text TEXT NOT NULL,
        token_ids BLOB NOT NULL
    )""",
    "CREATE INDEX pieces_by_message ON pieces (message, id)",
)

# The index holds words only and reads the texts from these views when it is checked or rebuilt.
# prefix='1 2': one or two letters while typing begin many words that are in nearly every message;
# without it they took 120 ms among 100,000 messages. Each further length makes the index larger by
# a third, for less and less.
_SEARCH = (
    "CREATE VIEW message_words AS SELECT id, spaced(text) AS text FROM messages",
    "CREATE VIEW chat_words AS SELECT id, spaced(title) AS title FROM chats",
    """CREATE VIRTUAL TABLE messages_fts USING fts5 (
        text, content='message_words', content_rowid='id',
        tokenize='unicode61 remove_diacritics 2', prefix='1 2'
    )""",
    """CREATE VIRTUAL TABLE chats_fts USING fts5 (
        title, content='chat_words', content_rowid='id',
        tokenize='unicode61 remove_diacritics 2', prefix='1 2'
    )""",
    """CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN
        INSERT INTO messages_fts (rowid, text) VALUES (new.id, spaced(new.text));
    END""",
    """CREATE TRIGGER messages_fts_delete AFTER DELETE ON messages BEGIN
        INSERT INTO messages_fts (messages_fts, rowid, text)
        VALUES ('delete', old.id, spaced(old.text));
    END""",
    """CREATE TRIGGER messages_fts_update AFTER UPDATE OF text ON messages
    WHEN old.text <> new.text BEGIN
        INSERT INTO messages_fts (messages_fts, rowid, text)
        VALUES ('delete', old.id, spaced(old.text));
        INSERT INTO messages_fts (rowid, text) VALUES (new.id, spaced(new.text));
    END""",
    """CREATE TRIGGER chats_fts_insert AFTER INSERT ON chats BEGIN
        INSERT INTO chats_fts (rowid, title) VALUES (new.id, spaced(new.title));
    END""",
    """CREATE TRIGGER chats_fts_delete AFTER DELETE ON chats BEGIN
        INSERT INTO chats_fts (chats_fts, rowid, title)
        VALUES ('delete', old.id, spaced(old.title));
    END""",
    """CREATE TRIGGER chats_fts_update AFTER UPDATE OF title ON chats
    WHEN old.title <> new.title BEGIN
        INSERT INTO chats_fts (chats_fts, rowid, title)
        VALUES ('delete', old.id, spaced(old.title));
        INSERT INTO chats_fts (rowid, title) VALUES (new.id, spaced(new.title));
    END""",
    "INSERT INTO messages_fts (messages_fts) VALUES ('rebuild')",
    "INSERT INTO chats_fts (chats_fts) VALUES ('rebuild')",
)

# What was typed in a chat and not sent; ``id`` is the chat's.
_DRAFTS = (
    """CREATE TABLE drafts (
        id INTEGER PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
        text TEXT NOT NULL
    )""",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_CHATS, _SEARCH, _DRAFTS)

# Functions that the tables call: name, number of arguments, function.
SQL_FUNCTIONS: tuple[tuple[str, int, Callable[[str], str]], ...] = (("spaced", 1, spaced),)
