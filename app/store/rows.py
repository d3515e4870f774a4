"""Between records and the columns of the tables."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from app.store.errors import StoreDamagedError
from app.store.records import Attachment, Chat, Figures, Message, Role, State

CHAT = (
    "id, title, created, updated, model, system, sampling, leaf, deleted_at,"
    " (SELECT count(*) FROM messages WHERE messages.chat = chats.id) AS count"
)
MESSAGE = (
    "id, chat, parent, role, text, state, created, model, file, runtime, figures, attachments,"
    " token_ids, error, dropped"
)


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


def unpack_ids(data: bytes) -> tuple[int, ...]:
    """The reverse of ``pack_ids``."""
    return struct.unpack(f"<{len(data) // 4}I", data)


def pack_figures(figures: Figures | None) -> str | None:
    """As JSON."""
    return None if figures is None else json.dumps(dataclasses.asdict(figures))


def pack_attachments(attachments: Iterable[Attachment]) -> str | None:
    """As JSON; None for none."""
    pairs = [[clean(a.name), clean(a.text)] for a in attachments]
    return json.dumps(pairs, ensure_ascii=False) if pairs else None


def pack_sampling(sampling: Mapping[str, Any] | None) -> str:
    """As JSON."""
    return json.dumps(dict(sampling or {}), ensure_ascii=True)


@contextlib.contextmanager
def _sensible(row: sqlite3.Row) -> Iterator[None]:
    """SQLite does not notice when bytes within a text have changed."""
    try:
        yield
    except (ValueError, TypeError, struct.error) as error:
        raise StoreDamagedError(
            f"entry {row['id']} of the chats is damaged ({error}); `ingot chats repair` saves the"
            " others"
        ) from error


def chat_of(row: sqlite3.Row) -> Chat:
    """From a row of CHAT. Raises StoreDamagedError."""
    with _sensible(row):
        return Chat(
            id=row["id"],
            title=row["title"],
            created=row["created"],
            updated=row["updated"],
            model=row["model"],
            system=row["system"],
            sampling=json.loads(row["sampling"]),
            leaf=row["leaf"],
            count=row["count"],
        )


def message_of(row: sqlite3.Row, pieces: Sequence[sqlite3.Row] = ()) -> Message:
    """From a row of MESSAGE and what the journal holds of it, oldest first. Raises
    StoreDamagedError."""
    with _sensible(row):
        text: str = row["text"]
        ids: bytes = row["token_ids"]
        if pieces:
            text = "".join([text, *(piece["text"] for piece in pieces)])
            ids = b"".join([ids, *(piece["token_ids"] for piece in pieces)])
        figures = row["figures"]
        attached = row["attachments"]
        return Message(
            id=row["id"],
            chat=row["chat"],
            parent=row["parent"],
            role=Role(row["role"]),
            text=text,
            state=State(row["state"]),
            created=row["created"],
            model=row["model"],
            file=row["file"],
            runtime=row["runtime"],
            figures=Figures(**json.loads(figures)) if figures else None,
            attachments=tuple(Attachment(*pair) for pair in json.loads(attached or "[]")),
            token_ids=unpack_ids(ids),
            error=row["error"],
            dropped=bool(row["dropped"]),
        )
