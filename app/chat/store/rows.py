"""Between records and the columns of the tables."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.chat.store.errors import StoreDamagedError
from app.chat.store.records import Attachment, Chat, Figures, Message, Role, State

CHAT = (
    "id, title, created, updated, model, system, sampling, leaf,"
    " (SELECT count(*) FROM messages WHERE messages.chat = chats.id) AS count"
)
MESSAGE = (
    "id, chat, parent, role, text, state, created, model, file, runtime, figures, attachments,"
    " token_ids, error, dropped"
)

_ROLES = {role.value: role for role in Role}
_STATES = {state.value: state for state in State}


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
    (
        id,
        chat,
        parent,
        role,
        text,
        state,
        created,
        model,
        file,
        runtime,
        figures,
        attachments,
        token_ids,
        error,
        dropped,
    ) = row
    try:
        if pieces:
            text = "".join([text, *(piece[0] for piece in pieces)])
            token_ids = b"".join([token_ids, *(piece[1] for piece in pieces)])
        return Message(
            id,
            chat,
            parent,
            _ROLES[role],
            text,
            _STATES[state],
            created,
            model,
            file,
            runtime,
            Figures(**json.loads(figures)) if figures else None,
            tuple(Attachment(*pair) for pair in json.loads(attachments)) if attachments else (),
            unpack_ids(token_ids),
            error,
            bool(dropped),
        )
    except (ValueError, TypeError, KeyError, struct.error) as problem:
        raise _damaged(id, problem) from problem


def _damaged(id: int, problem: Exception) -> StoreDamagedError:
    """SQLite does not notice when bytes within a text have changed."""
    return StoreDamagedError(
        f"entry {id} of the chats is damaged ({problem!r}); `ingot chats repair` saves the others"
    )
