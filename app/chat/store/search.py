"""Full-text search over all chats.

One hit a chat: chats whose title has all the words come first, then those in which a message has
them; the newest first in both. The last word may be unfinished, so that results come while one
types; cases and accents do not count; quotes and operators mean themselves. A query without a
letter or digit, such as ``->``, is looked for as it stands, in messages only.

The index (SQLite's FTS5 with ``unicode61``) takes every run of letters and digits for a word. In
scripts that are written without spaces that would be a whole sentence, so ``spaced`` makes each of
their characters a word of its own; a search for several of them in a row is then a search for a
phrase, and finds them anywhere.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from sqlite3 import Connection

from app.chat.store.records import Hit
from app.chat.store.rows import clean, read_chat

# Matching messages that are looked at, the newest first. More would take longer than a key press
# may, and only hides chats when the newest ones have hundreds of matches each.
_MOST_MATCHES = 20_000
_LONGEST_QUERY = 1000  # characters

_TITLES = """
    SELECT chats.id FROM chats_fts JOIN chats ON chats.id = chats_fts.rowid
    WHERE chats_fts MATCH ? AND deleted_at IS NULL ORDER BY updated DESC, chats.id DESC LIMIT ?"""
_MESSAGES = """
    SELECT messages.id, messages.chat FROM messages_fts
    JOIN messages ON messages.id = messages_fts.rowid
    WHERE messages_fts MATCH ? ORDER BY messages_fts.rowid DESC"""
_LITERALLY = "SELECT id, chat FROM messages WHERE text LIKE ? ESCAPE '^' ORDER BY id DESC"


def search(db: Connection, query: str, limit: int) -> list[Hit]:
    """The chats that ``query`` finds, at most ``limit``, the best first."""
    text = clean(query[:_LONGEST_QUERY]).replace("\0", " ")
    signs = text.strip()
    if not signs or limit < 1:
        return []
    # Those without a letter or digit are left out: the index has none of them. Signs within a word
    # stay: they join its parts to a phrase.
    words = [word for word in text.split() if _piece().search(word)]
    if not words:
        like = re.sub(r"([%_^])", r"^\1", signs)
        found = _newest_of_each_chat(db, _LITERALLY, f"%{like}%", limit)
        return _hits(db, found, found, [re.compile(re.escape(fold(signs)))])
    unfinished = not text[-1].isspace()  # the last word
    # In FTS5's language, in quotes, so that nothing of them is an operator.
    quoted = ['"' + spaced(word).replace('"', '""') + '"' for word in words]
    wanted = " AND ".join(quoted) + ("*" if unfinished else "")
    titled = [row[0] for row in db.execute(_TITLES, (wanted, limit))]
    found = _newest_of_each_chat(db, _MESSAGES, wanted, limit)
    patterns = [_pattern(word, unfinished=False) for word in words[:-1]]
    patterns.append(_pattern(words[-1], unfinished=unfinished))
    patterns.sort(key=lambda one: -len(one.pattern))
    chats = dict.fromkeys([*titled, *found])
    return _hits(db, islice(chats, limit), found, patterns)


def _newest_of_each_chat(db: Connection, sql: str, argument: str, limit: int) -> dict[int, int]:
    """Chats that are not deleted, with the newest of their messages that match."""
    deleted = {row[0] for row in db.execute("SELECT id FROM chats WHERE deleted_at IS NOT NULL")}
    found: dict[int, int] = {}
    for message, chat in islice(db.execute(sql, (argument,)), _MOST_MATCHES):
        if chat not in deleted:
            found.setdefault(chat, message)
            if len(found) >= limit:
                break
    return found


def _hits(
    db: Connection,
    chats: Iterable[int],
    messages: dict[int, int],
    patterns: list[re.Pattern[str]],
) -> list[Hit]:
    hits, query = [], "SELECT text FROM messages WHERE id = ?"
    for id in chats:
        chat, message = read_chat(db, id), messages.get(id)
        text = chat.title
        if message is not None:
            (text,) = db.execute(query, (message,)).fetchone()
        hits.append(Hit(chat, message, *_snippet(text, patterns)))
    return hits


# Words as the index sees them

# Thai, Lao, Myanmar, Khmer; kana; Chinese characters with their extensions; Hangul. Hangul has
# spaces, but its words carry their particles.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_ACCENTS = "[\u0300-\u036f]*"
_LETTER = rf"[^\W_{_UNSPACED}]"  # of a word with spaces around it


@cache
def _alone() -> re.Pattern[str]:
    """A character that is a word; so many take time to compile, which most chats do without."""
    return re.compile(f"([{_UNSPACED}])")


@cache
def _piece() -> re.Pattern[str]:
    return re.compile(f"{_LETTER}(?:{_LETTER}|[\u0300-\u036f])*|[{_UNSPACED}]")


class _Folded(dict[int, str]):
    """A table for ``str.translate`` that fills itself; one character always becomes one, so that
    places in the folded text are places in the text."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        # The parts of a Hangul syllable are letters, and a kana with a mark is another kana.
        base = letter if _alone().match(letter) else unicodedata.normalize("NFD", letter)[0]
        self[code] = next((c for c in (base.casefold(), base.lower()) if len(c) == 1), base)
        return self[code]


_folded = _Folded()


def fold(text: str) -> str:
    """``text`` without cases and accents, as long as it was. Accents that are characters of their
    own stay: the index passes over them."""
    return text.lower() if text.isascii() else text.translate(_folded)


def spaced(text: str) -> str:
    """``text`` as it is given to the index."""
    # ``unicode61`` folds too, but knows the accents of Latin letters alone.
    return text.lower() if text.isascii() else _alone().sub(" \\1 ", fold(text))


def _pattern(word: str, *, unfinished: bool) -> re.Pattern[str]:
    """Regular expression that matches, in a folded text, the places where the index matches
    ``word``; beginnings of longer words only if it is ``unfinished``.
    """
    pieces, parts = _piece().findall(fold(word)), []
    for number, piece in enumerate(pieces, 1):
        if _alone().match(piece):
            parts.append(piece)
            continue
        letters = "".join(re.escape(letter) + _ACCENTS for letter in piece)
        end = "" if unfinished and number == len(pieces) else f"(?!{_LETTER})"
        parts.append(f"(?<!{_LETTER}){letters}{end}")
    return re.compile(r"[\W_]*".join(parts))


# What shows why a text was found

_BEFORE = 24  # characters before the match that is shown first
_LENGTH = 120
_LONGEST_TEXT = 200_000  # characters that are looked through; what matches further on shows no mark


def _snippet(
    text: str, patterns: Sequence[re.Pattern[str]]
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """One line of ``text`` around the first match of one of ``patterns``, the most telling first,
    and where all of them match in it. The patterns are for folded text."""
    folded = fold(text[:_LONGEST_TEXT])
    starts = (found.start() for one in patterns if (found := one.search(folded)))
    line = _around(text, next(starts, 0))
    shown = fold(line)
    marks: list[tuple[int, int]] = []
    for start, end in sorted({m.span() for p in patterns for m in p.finditer(shown) if m.group()}):
        # Vowel signs and accents belong to the letter before them.
        while end < len(line) and unicodedata.category(line[end]).startswith("M"):
            end += 1
        if marks and start < marks[-1][1]:  # overlapping ranges become one
            start, before = marks.pop()
            end = max(end, before)
        marks.append((start, end))
    return line, tuple(marks)


def _around(text: str, at: int) -> str:
    start = max(0, min(at - _BEFORE, len(text) - _LENGTH))
    if start:  # begin with a whole word, when there is one
        space = re.compile(r"\s").search(text, start, at)
        start = space.end() if space else start
    end = start + _LENGTH
    line = " ".join(text[start:end].split())
    return ("…" if text[:start].strip() else "") + line + ("…" if text[end:].strip() else "")
