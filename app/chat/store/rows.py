"""Between records and the tables, each step within a transaction of the caller's."""

import json
import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from sqlite3 import Connection
from types import UnionType
from typing import Any, get_origin, get_type_hints

from app.chat.store.errors import StoreDamagedError, StoreError
from app.chat.store.records import AnswerFigures, Attachment, Chat, Message, Role, State
from app.tools.calls import ToolCall
from quantize.fromjson import from_json
from runtimes.machine.processes import birth, is_alive
from runtimes.untrusted import visible

CHAT = (
    "id, title, created, updated, model, system, sampling, leaf,"
    " (SELECT count(*) FROM messages WHERE messages.chat = chats.id) AS count, raw, tools"
)
_MESSAGE = tuple(field.name for field in fields(Message))  # the columns, too
MESSAGE = ", ".join(_MESSAGE)
_TITLE = 60  # characters of a title that was made from the first message
MOST_ID = 2**53  # a number above was not given by SQLite; nor are there so many tokens
_LATEST = 253402214400.0  # seconds since 1970: the last day that a calendar shows, anywhere
_WRONG = (ValueError, TypeError, RecursionError)  # of a value that Ingot did not write


def clean(text: str) -> str:
    """``text`` as it can be stored: half a surrogate pair, which no UTF-8 can hold, is replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit numbers."""
    return struct.pack(f"<{len(ids)}I", *ids)


def pack_figures(figures: AnswerFigures) -> str:
    """As JSON."""
    return json.dumps(asdict(figures))


def pack_calls(calls: Sequence[ToolCall]) -> str | None:
    """As JSON; None for none."""
    return json.dumps([storable(asdict(call)) for call in calls]) if calls else None


def storable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Columns, or fields, from what a caller gives."""
    stored = {k: clean(v) if isinstance(v, str) else v for k, v in values.items()}
    for name in values.keys() & {"sampling", "tools"}:
        stored[name] = json.dumps(dict(values[name]))
    return stored


def chat_of(row: tuple[Any, ...]) -> Chat:
    """From a row of CHAT. Raises StoreDamagedError."""
    id, title, created, updated, model, system, sampling, leaf, count, raw, tools = row
    try:
        kept, chosen = json.loads(sampling), json.loads(tools)
        more = (kept, leaf, count, bool(raw), chosen)
        chat = Chat(id, title, created, updated, model, system, *more)
        _check(chat, created, updated)
        return chat
    except _WRONG as error:
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
            "figures": _figures(json.loads(figures)) if figures else None,
            "attachments": tuple(
                Attachment(clean(name), clean(text))
                for name, text in json.loads(attachments or "[]")
            ),
            "token_ids": struct.unpack(f"<{len(ids) // 4}I", ids),
            "dropped": bool(values["dropped"]),
            "calls": tuple(from_json(ToolCall, v) for v in json.loads(values["calls"] or "[]")),
        }
        message = Message(**values)
        _check(message, message.created)
        if message.parent is not None and message.parent >= message.id:
            raise ValueError("it answers a later one")
        return message
    except (*_WRONG, AttributeError, KeyError, struct.error) as problem:
        raise _damaged(row[0], problem) from problem


def _figures(values: Any) -> AnswerFigures:
    """Raises one of GARBLED."""
    found = from_json(AnswerFigures, values)
    for count in (found.prompt_tokens, found.cached_tokens, found.completion_tokens):
        if not 0 <= count <= MOST_ID:
            raise ValueError("no number of tokens")
    return found


@cache
def _types(kind: type) -> dict[str, Any]:
    """Types of a record's fields, as ``isinstance`` takes them; a whole number is a float, too."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        known = hint if isinstance(hint, UnionType) else get_origin(hint) or hint
        found[name] = known | int if isinstance(0.0, known) else known
    return found


def _check(record: Chat | Message, *moments: float) -> None:
    """Raise TypeError or ValueError for a row that Ingot did not write: a column of SQLite takes
    values of any type, its number may be none, and a time of no calendar."""
    kind: Any = type(record)  # hashable, which mypy does not see
    for name, known in _types(kind).items():
        value = getattr(record, name)
        if not isinstance(value, known):
            raise TypeError(f"{name} is of type {type(value).__name__}")
    if not 0 < record.id < MOST_ID:
        raise ValueError("no number of a row")
    if not all(0 <= moment <= _LATEST for moment in moments):
        raise ValueError("no time")


def _damaged(id: int, problem: Exception) -> StoreDamagedError:
    """SQLite does not notice when bytes within a text have changed."""
    said = visible(str(problem)[:100])
    return StoreDamagedError(
        f"entry {id} of the chats is damaged ({said}); `ingot chats repair` saves the others"
    )


def title_of(text: str) -> str:
    """A title from what was said first: its first line that says something, cut at a word."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    line = " ".join(line.split())
    if len(line) <= _TITLE:
        return line
    head, _, _ = line[:_TITLE].rpartition(" ")
    return (head if len(head) > _TITLE // 2 else line[: _TITLE - 1]) + "…"


def read_chat(db: Connection, id: int) -> Chat:
    """A chat. Raises StoreError when there is none of this number."""
    row = db.execute(f"SELECT {CHAT} FROM chats WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise StoreError(f"there is no chat {id}; `ingot chats` lists all chats")
    return chat_of(row)


def read_message(db: Connection, id: int) -> Message:
    """A message. Raises StoreError when there is none of this number."""
    found = read_messages(db, "id = ?", id)
    if not found:
        raise StoreError(f"there is no message {id}")
    return found[0]


def read_messages(db: Connection, where: str, value: int) -> list[Message]:
    """Messages by one condition, oldest first; of one that streams, what was saved last."""
    rows = db.execute(f"SELECT {MESSAGE} FROM messages WHERE {where} ORDER BY id", (value,))
    state = _MESSAGE.index("state")
    return [
        message_of(row, _pieces(db, row[0]) if row[state] == State.STREAMING else ())
        for row in rows.fetchall()
    ]


def linked(messages: list[Message]) -> list[Message]:
    """All messages of a chat. Raises StoreDamagedError where one answers a message that is not
    among them."""
    ids = {message.id for message in messages}
    for message in messages:
        if message.parent is not None and message.parent not in ids:
            raise _damaged(message.id, ValueError("what it answers is not there"))
    return messages


def _pieces(db: Connection, message: int) -> list[tuple[str, bytes]]:
    query = "SELECT text, token_ids FROM pieces WHERE message = ? ORDER BY id"
    return db.execute(query, (message,)).fetchall()


def insert_message(
    db: Connection, chat: int, parent: int | None, role: Role, state: State, **more: object
) -> int:
    """Add a message, ``more`` in further columns, and show its branch; its number. Raises
    StoreError."""
    read_chat(db, chat)
    if parent is not None:
        require_in_chat(db, chat, parent)
    known = {"chat": chat, "parent": parent, "role": role, "state": state, "text": ""}
    id = insert(db, "messages", {**known, "created": time.time(), **more})
    touch(db, chat, id)
    return id


def insert(db: Connection, table: str, values: dict[str, Any]) -> int:
    """Add a row; its number."""
    marks = ", ".join("?" * len(values))
    query = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})"
    return int(db.execute(query, tuple(values.values())).lastrowid or 0)


def update(db: Connection, table: str, id: int, **values: Any) -> bool:
    """Change columns of a row; whether it is there."""
    names = ", ".join(f"{name} = ?" for name in values)
    return bool(
        db.execute(f"UPDATE {table} SET {names} WHERE id = ?", (*values.values(), id)).rowcount
    )


def touch(db: Connection, chat: int, leaf: int) -> None:
    """A message has come: its branch is shown, and its chat is the newest."""
    update(db, "chats", chat, leaf=leaf, updated=time.time())


def require_in_chat(db: Connection, chat: int, message: int) -> None:
    """Raise StoreError for a message that the chat does not have."""
    query = "SELECT 1 FROM messages WHERE id = ? AND chat = ?"
    if db.execute(query, (message, chat)).fetchone() is None:
        raise StoreError(f"there is no message {message} in chat {chat}")


# The life of an answer: begun, saved piece by piece, ended, or found dead


def begin(db: Connection, message: int) -> None:
    """Mark an answer as written by this process."""
    pid, now = os.getpid(), State.STREAMING
    update(db, "messages", message, state=now, error=None, owner_pid=pid, owner_born=birth(pid))


def end(db: Connection, message: int, ids: bytes, state: State, **more: Any) -> None:
    """The answer is whole, with ``more`` in further columns: its journal is not needed any more."""
    db.execute("DELETE FROM pieces WHERE message = ?", (message,))
    more |= {"token_ids": ids, "state": state, "owner_pid": None, "owner_born": None}
    update(db, "messages", message, **more)


def orphans(db: Connection) -> list[int]:
    """Answers that stream although their process is gone."""
    query = "SELECT id, owner_pid, owner_born FROM messages WHERE state = 'streaming'"
    return [
        id
        for id, pid, born in db.execute(query).fetchall()
        if not (isinstance(pid, int) and isinstance(born, float) and is_alive(pid, born))
    ]


def mark_lost(db: Connection, messages: Sequence[int]) -> None:
    """Give ``messages`` what their journals hold, and the state LOST."""
    for id in messages:
        rows = db.execute("SELECT text, token_ids FROM messages WHERE id = ?", (id,)).fetchall()
        texts, ids = zip(*rows, *_pieces(db, id), strict=True)
        try:
            end(db, id, b"".join(ids), State.LOST, text="".join(texts))
        except TypeError as error:
            raise _damaged(id, error) from error
