"""Chats of any length, made in one transaction: saved one by one, a thousand messages would take as
many waits for the disk."""

import json
import random
import sqlite3
import time
from dataclasses import asdict

from app.chat.store.records import AnswerFigures, Chat, Role
from app.chat.store.rows import pack_ids
from app.chat.store.store import ChatStore

_WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or"
    " had an they which one you were all her she there would their we him been has when who will no"
    " more if out so said what up its about than into them can only other time new some could these"
    " two may first then do any like my now over such our man even most made after also did many"
    " off before must well back through years much where your way down should because long each"
    " just state those people too mr how little good world make very year still see own work men"
    " day get here old life both between being under three never know same last another while us"
    " might great go come since against right came take used himself few house use place during"
).split()
# An example, the same for all: what it says is not measured.
FIGURES = AnswerFigures(812, 640, 96, 0.21, 819.2, 41.5, 2.5, "stop")


def fill(store: ChatStore, messages: int = 1000, *, branches: int = 0, seed: int = 1) -> Chat:
    """A chat whose shown branch has so many messages, questions and answers in turn; ``branches``
    more answers stand beside the first ones. Answers are Markdown: paragraphs, lists, code. The
    same ``seed`` makes the same texts.
    """
    rng = random.Random(seed)
    with store.writing() as db:
        created = time.time() - messages - branches
        row = db.execute(
            "INSERT INTO chats (title, created, updated) VALUES (?, ?, ?) RETURNING id",
            (f"A chat of {messages:,} messages", created, time.time()),
        ).fetchone()
        chat = int(row[0])
        parents: list[int | None] = [None]
        for number in range(messages):
            asked = number % 2 == 0
            text = _question(rng, number) if asked else _answer(rng, number)
            parents.append(_insert(db, chat, parents[-1], asked, text, created + number))
        for number in range(branches):
            text = _answer(rng, 2 * number + 1)
            _insert(db, chat, parents[2 * number + 1], False, text, created + messages + number)
        db.execute("UPDATE chats SET leaf = ? WHERE id = ?", (parents[-1], chat))
    return store.chat(chat)


def _question(rng: random.Random, number: int) -> str:
    return f"Question {number // 2 + 1}: {_prose(rng, 20)}?"


def _answer(rng: random.Random, number: int) -> str:
    parts = [f"Answer {number // 2 + 1}. {_prose(rng, 60)}."]
    if number % 6 == 1:
        parts.append("\n".join(f"- **{rng.choice(_WORDS)}**: {_prose(rng, 8)}" for _ in range(4)))
    if number % 10 == 1:
        body = "\n".join(f"    {rng.choice(_WORDS)} = {rng.random():.3f}" for _ in range(8))
        parts.append(f"```python\ndef f{number}():\n{body}\n```")
    return "\n\n".join([*parts, _prose(rng, 40) + "."])


def _prose(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words)).capitalize()


def _insert(
    db: sqlite3.Connection, chat: int, parent: int | None, asked: bool, text: str, created: float
) -> int:
    ids = b"" if asked else pack_ids([len(word) for word in text.split()])
    row = db.execute(
        "INSERT INTO messages (chat, parent, role, state, created, text, token_ids, model, figures)"
        " VALUES (?, ?, ?, 'done', ?, ?, ?, ?, ?) RETURNING id",
        (
            chat,
            parent,
            Role.USER if asked else Role.ASSISTANT,
            created,
            text,
            ids,
            None if asked else "pebble · q4_k_m",
            None if asked else json.dumps(asdict(FIGURES)),
        ),
    ).fetchone()
    return int(row[0])
