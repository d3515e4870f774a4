"""Single steps on the tables, each within a transaction of the caller's."""

from __future__ import annotations

import sqlite3
import time

from app.chat.store.errors import StoreError
from app.chat.store.records import Chat, Message, Role, State
from app.chat.store.rows import CHAT, MESSAGE, chat_of, message_of

_STATE = MESSAGE.split(", ").index("state")
_TITLE = 60  # characters of a title that was made from the first message


def title_of(text: str) -> str:
    """A title from what was said first: its first line that says something, cut at a word."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    line = " ".join(line.split())
    if len(line) <= _TITLE:
        return line
    head, _, _ = line[:_TITLE].rpartition(" ")
    return (head if len(head) > _TITLE // 2 else line[: _TITLE - 1]) + "…"


def empty_chats(db: sqlite3.Connection, before: float) -> list[int]:
    """Chats that were begun ``before``, and in which nothing was ever said, named or typed."""
    rows = db.execute(
        "SELECT id FROM chats WHERE updated < ? AND title = '' AND system IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.chat = chats.id)"
        " AND id NOT IN (SELECT id FROM drafts)",
        (before,),
    )
    return [row[0] for row in rows]


def read_chat(db: sqlite3.Connection, id: int) -> Chat:
    """A chat. Raises StoreError when there is none of this number."""
    row = db.execute(f"SELECT {CHAT} FROM chats WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise StoreError(f"there is no chat {id}; `ingot chats` lists all chats")
    return chat_of(row)


def read_message(db: sqlite3.Connection, id: int) -> Message:
    """A message. Raises StoreError when there is none of this number."""
    found = read_messages(db, "id = ?", id)
    if not found:
        raise StoreError(f"there is no message {id}")
    return found[0]


def read_messages(db: sqlite3.Connection, where: str, value: int) -> list[Message]:
    """Messages by one condition, oldest first; of one that streams, what was saved last."""
    rows = db.execute(f"SELECT {MESSAGE} FROM messages WHERE {where} ORDER BY id", (value,))
    found: list[Message] = []
    for row in rows.fetchall():
        pieces: list[tuple[str, bytes]] = []
        if row[_STATE] == State.STREAMING:
            pieces = db.execute(
                "SELECT text, token_ids FROM pieces WHERE message = ? ORDER BY id", (row[0],)
            ).fetchall()
        found.append(message_of(row, pieces))
    return found


def insert_message(
    db: sqlite3.Connection, chat: int, parent: int | None, role: Role, state: State, text: str
) -> int:
    """Add a message without attachments and show its branch; its number. Raises StoreError."""
    read_chat(db, chat)
    if parent is not None:
        require_in_chat(db, chat, parent)
    row = db.execute(
        "INSERT INTO messages (chat, parent, role, state, created, text)"
        " VALUES (?, ?, ?, ?, ?, ?) RETURNING id",
        (chat, parent, role, state, time.time(), text),
    ).fetchone()
    touch(db, chat, row[0])
    return int(row[0])


def touch(db: sqlite3.Connection, chat: int, leaf: int) -> None:
    """A message has come: its branch is shown, and its chat is the newest."""
    db.execute("UPDATE chats SET leaf = ?, updated = ? WHERE id = ?", (leaf, time.time(), chat))


def require_in_chat(db: sqlite3.Connection, chat: int, message: int) -> None:
    """Raise StoreError for a message that the chat does not have."""
    query = "SELECT 1 FROM messages WHERE id = ? AND chat = ?"
    if db.execute(query, (message, chat)).fetchone() is None:
        raise StoreError(f"there is no message {message} in chat {chat}")


def state_of(db: sqlite3.Connection, message: int) -> State:
    """The state of a message. Raises StoreError when there is none of this number."""
    row = db.execute("SELECT state FROM messages WHERE id = ?", (message,)).fetchone()
    if row is None:
        raise StoreError(f"there is no message {message}")
    return State(row[0])
