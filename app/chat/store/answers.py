"""The life of an answer in the tables: begun, saved piece by piece, ended, or found dead."""

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from app.chat.store.records import State
from app.chat.store.rows import pack_ids
from runtimes.machine.processes import birth, is_alive


@dataclass(frozen=True, slots=True)
class Saved:
    """What the file holds of an answer that streams."""

    text: str
    tokens: int


def begin(db: sqlite3.Connection, message: int) -> None:
    """Mark as written by this process."""
    pid = os.getpid()
    born = birth(pid)
    db.execute(
        "UPDATE messages SET state = ?, owner_pid = ?, owner_born = ?, error = NULL WHERE id = ?",
        (State.STREAMING, pid, born, message),
    )


def append(
    db: sqlite3.Connection,
    message: int,
    saved: Saved | None,
    text: str,
    ids: Sequence[int],
) -> None:
    """Make the file hold ``text`` and ``ids``. What continues ``saved`` costs what is new, not
    what is there; anything else replaces it."""
    if saved is not None and text.startswith(saved.text) and len(ids) >= saved.tokens:
        text, ids = text[len(saved.text) :], ids[saved.tokens :]
        if not text and not ids:
            return
    else:
        db.execute("DELETE FROM pieces WHERE message = ?", (message,))
        db.execute(
            "UPDATE messages SET text = '', token_ids = x'' WHERE id = ? AND"
            " (text <> '' OR token_ids <> x'')",
            (message,),
        )
    db.execute(
        "INSERT INTO pieces (message, text, token_ids) VALUES (?, ?, ?)",
        (message, text, pack_ids(ids)),
    )


def end(db: sqlite3.Connection, message: int, text: str, ids: bytes, state: State) -> None:
    """The answer is whole: its journal is not needed any more."""
    db.execute("DELETE FROM pieces WHERE message = ?", (message,))
    db.execute(
        "UPDATE messages SET text = ?, token_ids = ?, state = ?, owner_pid = NULL,"
        " owner_born = NULL WHERE id = ?",
        (text, ids, state, message),
    )


def orphans(db: sqlite3.Connection) -> list[int]:
    """Answers that stream although their process is gone."""
    rows = db.execute(
        "SELECT id, owner_pid, owner_born FROM messages WHERE state = 'streaming'"
    ).fetchall()
    return [row[0] for row in rows if row[1] is None or not is_alive(row[1], row[2])]


def mark_lost(db: sqlite3.Connection, messages: Sequence[int]) -> None:
    """Give ``messages`` what their journals hold, and the state LOST."""
    for id in messages:
        rows = db.execute("SELECT text, token_ids FROM messages WHERE id = ?", (id,)).fetchall()
        query = "SELECT text, token_ids FROM pieces WHERE message = ? ORDER BY id"
        rows += db.execute(query, (id,)).fetchall()
        text, ids = "".join(row[0] for row in rows), b"".join(row[1] for row in rows)
        end(db, id, text, ids, State.LOST)
