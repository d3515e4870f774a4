"""Between records and the tables: single rows, each within a transaction of the caller's."""

import dataclasses
import json
import sqlite3
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.chat.store.errors import StoreDamagedError, StoreError
from app.chat.store.records import Attachment, Chat, Figures, Message, Role, State

CHAT = (
    "id, title, created, updated, model, system, sampling, leaf,"
    " (SELECT count(*) FROM messages WHERE messages.chat = chats.id) AS count"
)
_MESSAGE = tuple(field.name for field in dataclasses.fields(Message))  # the columns, too
MESSAGE = ", ".join(_MESSAGE)
_TITLE = 60  # characters of a title that was made from the first message


def clean(text: str) -> str:
    """``text`` as it can be stored: half a surrogate pair, which no UTF-8 can hold, is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit numbers."""
    return struct.pack(f"<{len(ids)}I", *ids)


def pack_figures(figures: Figures | None) -> str | None:
    """As JSON."""
    return None if figures is None else json.dumps(dataclasses.asdict(figures))


def pack_attachments(attachments: Iterable[Attachment]) -> str | None:
    """As JSON; None for none."""
    pairs = [[clean(a.name), clean(a.text)] for a in attachments]
    return json.dumps(pairs, ensure_ascii=False) if pairs else None


def json_of(sampling: Mapping[str, Any] | None) -> str:
    """Sampling as it is stored."""
    return json.dumps(dict(sampling or {}), ensure_ascii=True)


def chat_of(row: tuple[Any, ...]) -> Chat:
    """From a row of CHAT. Raises StoreDamagedError."""
    id, title, created, updated, model, system, sampling, leaf, count = row
    try:
        return Chat(id, title, created, updated, model, system, json.loads(sampling), leaf, count)
    except (ValueError, TypeError) as error:
        raise _damaged(id, error) from error


def message_of(row: tuple[Any, ...], pieces: Sequence[tuple[str, bytes]] = ()) -> Message:
    """From a row of MESSAGE and what the journal holds of it, oldest first: texts and token ids.
    Raises StoreDamagedError."""
    values = dict(zip(_MESSAGE, row, strict=True))
    figures, attachments = values["figures"], values["attachments"]
    try:
        ids = b"".join([values["token_ids"], *(piece[1] for piece in pieces)])
        values |= {
            "role": Role(values["role"]),
            "state": State(values["state"]),
            "text": "".join([values["text"], *(piece[0] for piece in pieces)]),
            "figures": Figures(**json.loads(figures)) if figures else None,
            "attachments": tuple(Attachment(*pair) for pair in json.loads(attachments or "[]")),
            "token_ids": struct.unpack(f"<{len(ids) // 4}I", ids),
            "dropped": bool(values["dropped"]),
        }
        return Message(**values)
    except (ValueError, TypeError, struct.error) as problem:
        raise _damaged(row[0], problem) from problem


def _damaged(id: int, problem: Exception) -> StoreDamagedError:
    """SQLite does not notice when bytes within a text have changed."""
    return StoreDamagedError(
        f"entry {id} of the chats is damaged ({problem!r}); `ingot chats repair` saves the others"
    )


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
    pieces = "SELECT text, token_ids FROM pieces WHERE message = ? ORDER BY id"
    streams = _MESSAGE.index("state")
    return [
        message_of(
            row,
            db.execute(pieces, row[:1]).fetchall() if row[streams] == State.STREAMING else (),
        )
        for row in rows.fetchall()
    ]


def insert_message(
    db: sqlite3.Connection, chat: int, parent: int | None, role: Role, state: State, **more: object
) -> int:
    """Add a message, ``more`` in further columns, and show its branch; its number. Raises
    StoreError."""
    read_chat(db, chat)
    if parent is not None:
        require_in_chat(db, chat, parent)
    known = {"chat": chat, "parent": parent, "role": role, "state": state, "created": time.time()}
    values = {**known, "text": "", **more}
    row = db.execute(
        f"INSERT INTO messages ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"
        " RETURNING id",
        tuple(values.values()),
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
