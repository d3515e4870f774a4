"""Full-text search over all chats.

One hit a chat: chats whose title has all the words come first, then those in which a message has
them; the newest first in both. The last word may be unfinished, so that results come while one
types; cases and accents do not count; quotes and operators mean themselves. A query without a
letter or digit, such as ``->``, is looked for as it stands, in messages only.
"""

from __future__ import annotations

import re
import sqlite3
from itertools import islice

from app.chat.store.records import Hit
from app.chat.store.rows import CHAT, chat_of, clean
from app.chat.store.snippet import snippet
from app.chat.store.words import expression, fold, pattern, words_of

# Matching messages that are looked at, the newest first. More would take longer than a key press
# may, and only hides chats when the newest ones have hundreds of matches each.
_MOST_MATCHES = 20_000
_LONGEST = 1000  # characters of a query

_TITLES = """
    SELECT chats.id FROM chats_fts JOIN chats ON chats.id = chats_fts.rowid
    WHERE chats_fts MATCH ? AND deleted_at IS NULL ORDER BY updated DESC, chats.id DESC LIMIT ?"""
_MESSAGES = """
    SELECT messages.id, messages.chat FROM messages_fts
    JOIN messages ON messages.id = messages_fts.rowid
    WHERE messages_fts MATCH ? ORDER BY messages_fts.rowid DESC"""
_LITERALLY = "SELECT id, chat FROM messages WHERE text LIKE ? ESCAPE '^' ORDER BY id DESC"


def search(db: sqlite3.Connection, query: str, limit: int) -> list[Hit]:
    """The chats that ``query`` finds, at most ``limit``, the best first."""
    text = clean(query[:_LONGEST]).replace("\0", " ")
    words = words_of(text)
    text_as_is = text.strip()
    if not text_as_is or limit < 1:
        return []
    if not words:
        like = re.sub(r"([%_^])", r"^\1", text_as_is)
        found = _newest_of_each_chat(db, _LITERALLY, f"%{like}%", limit)
        return _hits(db, dict.fromkeys(found), found, [re.compile(re.escape(fold(text_as_is)))])
    unfinished = not text[-1].isspace()
    wanted = expression(words, unfinished=unfinished)
    titled = [row[0] for row in db.execute(_TITLES, (wanted, limit))]
    found = _newest_of_each_chat(db, _MESSAGES, wanted, limit)
    patterns = [
        pattern(word, unfinished=unfinished and number == len(words) - 1)
        for number, word in enumerate(words)
    ]
    patterns.sort(key=lambda one: -len(one.pattern))
    order = dict.fromkeys([*titled, *found])
    return _hits(db, dict.fromkeys(islice(order, limit)), found, patterns)


def _newest_of_each_chat(
    db: sqlite3.Connection, sql: str, argument: str, limit: int
) -> dict[int, int]:
    """Chats that are not deleted, with the newest of their messages that match."""
    deleted = {row[0] for row in db.execute("SELECT id FROM chats WHERE deleted_at IS NOT NULL")}
    found: dict[int, int] = {}
    rows = db.execute(sql, (argument,))
    for message, chat in islice(rows, _MOST_MATCHES):
        if chat not in deleted and chat not in found:
            found[chat] = message
            if len(found) >= limit:
                break
    rows.close()
    return found


def _hits(
    db: sqlite3.Connection,
    chats: dict[int, None],
    messages: dict[int, int],
    patterns: list[re.Pattern[str]],
) -> list[Hit]:
    hits = []
    for id in chats:
        chat = chat_of(db.execute(f"SELECT {CHAT} FROM chats WHERE id = ?", (id,)).fetchone())
        message = messages.get(id)
        text = chat.title
        if message is not None:
            query = "SELECT text FROM messages WHERE id = ?"
            text = db.execute(query, (message,)).fetchone()[0]
        hits.append(Hit(chat, message, *snippet(text, patterns)))
    return hits
