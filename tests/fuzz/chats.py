"""The file of the chats with bytes flipped, rows of wrong types, and somebody else's schema."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from app.chat.conversation import Conversation
from app.chat.export import as_json, as_markdown
from app.chat.listing import find_chats
from app.chat.store.records import AnswerFigures, Attachment
from app.chat.store.repair import is_whole, repair
from app.chat.store.store import ChatStore
from runtimes.errors import IngotError
from tests.fuzz.cases import Case, loop
from tests.fuzz.commands import ingot
from tests.fuzz.mutate import TEXTS, VALUES, damaged, strange

_FIGURES = AnswerFigures(5, 0, 2, 0.1, 10.0, 20.0, 0.5, "stop")
_COLUMNS = {
    "chats": "title created updated model system sampling leaf deleted_at raw id".split(),
    "messages": (
        "chat parent role state created dropped model file runtime figures error owner_pid"
        " owner_born attachments text token_ids id"
    ).split(),
    "pieces": "message text token_ids id".split(),
    "drafts": "text id".split(),
}


@cache
def _good() -> bytes:
    """Three chats: branches, an attachment, figures, a draft, one that was deleted."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "chats.db"
        with contextlib.closing(ChatStore.open(path)) as store:
            for number in range(3):
                chat = store.new_chat("pebble", "Be short.")
                store.update_chat(chat.id, sampling={"temperature": 0.5})
                conversation = Conversation.open(store, chat.id)
                for turn in range(4):
                    text = f"Question {turn} of {number}? " + "word " * 30
                    conversation.say(text, [Attachment("a.txt", "attached")] if turn else [])
                store.keep_draft(chat.id, f"draft {number}")
            store.delete_chat(chat.id)
        with contextlib.closing(sqlite3.connect(path)) as db:
            figures = json.dumps(asdict(_FIGURES))
            db.execute("UPDATE messages SET figures = ?", (figures,))
            db.commit()
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path.read_bytes()


def one(case: Case) -> None:
    random = case.random
    path = case.write("data/chats.db", _good())
    if random.random() < 0.45:
        _wrong_rows(path, random)
    if random.random() < 0.6:
        data = path.read_bytes()
        path.write_bytes(_pages(data, random) if random.random() < 0.4 else damaged(data, random))
    if random.random() < 0.1:
        case.write(
            f"data/chats.db-{random.choice(('wal', 'shm', 'journal'))}", random.randbytes(4096)
        )
    with mock.patch.dict(os.environ, {"INGOT_HOME": str(case.folder)}):
        _use(path, random)
        command = random.choice((("chats",), ("chats", "--json"), ("chats", "search", "word")))
        if random.random() < 0.5:
            command = random.choice((("chats", "export", "1"), ("chats", "export", "2", "--json")))
        ingot(case, *command)
        _repair(case, path)


def _use(path: Path, random: Random) -> None:
    with contextlib.suppress(IngotError), contextlib.closing(ChatStore.open(path)) as store:
        for chat in (*store.chats(), *store.deleted()):
            with contextlib.suppress(IngotError):
                conversation = Conversation.open(store, chat.id)
                as_json(conversation)
                as_markdown(conversation)
            with contextlib.suppress(IngotError):
                store.draft(chat.id)
        find_chats(store, random.choice(("word", "Question 2", '"', "*", "\ud800")), 5)
        store.prompts()
        Conversation.new(store).say("another", [])


def _repair(case: Case, path: Path) -> None:
    before = path.read_bytes()
    try:
        done = repair(path)
    except IngotError:
        case.figures["not_repaired"] += 1
        assert path.is_file(), "repair took the file away"
        return
    case.figures["repaired" if done.aside else "whole"] += 1
    assert done.aside is None or done.aside.read_bytes()[:16] == before[:16]
    assert is_whole(path)
    with contextlib.closing(ChatStore.open(path)) as store:
        for chat in store.chats(1000):
            as_json(Conversation.open(store, chat.id))
    shutil.rmtree(path.parent)


def _wrong_rows(path: Path, random: Random) -> None:
    """Change rows, or the schema, past every constraint."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as db:
        db.create_function("spaced", 1, lambda text: text)
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        for _ in range(random.choice((1, 1, 2, 5))):
            table = random.choice(sorted(_COLUMNS))
            column = random.choice(_COLUMNS[table])
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                if random.random() < 0.15:
                    db.executescript(random.choice(VALUES["sql"]))
                else:
                    where = f"WHERE id = {random.randrange(1, 8)}" if random.random() < 0.7 else ""
                    db.execute(f"UPDATE {table} SET {column} = ? {where}", (_value(random),))
        db.commit()


def _value(random: Random) -> Any:
    """Of any of SQLite's types."""
    value = random.choice(
        (
            None, -1, 0, 1, 7, 2**62, 1e300, float("inf"), b"", b"\xff\xfe", random.randbytes(40),
            "[]", "{}", "null", '[["a"]]', '{"temperature": "x"}', "[" * 2000, "user", "streaming",
            random.choice(TEXTS), str(strange(random))[:500],
        )
    )  # fmt: skip
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _pages(data: bytes, random: Random) -> bytes:
    """Pages that changed places, or are zeros or noise."""
    pages = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    one, other = random.randrange(len(pages)), random.randrange(len(pages))
    match random.randrange(4):
        case 0:
            pages[one], pages[other] = pages[other], pages[one]
        case 1:
            pages[one] = bytes(4096)
        case 2:
            pages[one] = random.randbytes(4096)
        case _:
            del pages[one]
    return b"".join(pages)


def run(seconds: float, seed: int, count: int | None = None) -> dict[str, int]:
    return loop("chats", one, seconds, seed, count)
