"""Words as the full-text index sees them.

The index (SQLite's FTS5 with ``unicode61``) takes every run of letters and digits for a word. In
scripts that are written without spaces that would be a whole sentence, so ``spaced`` makes each of
their characters a word of its own; a search for several of them in a row is then a search for a
phrase, and finds them anywhere.
"""

from __future__ import annotations

import re
import unicodedata

# Thai, Lao, Myanmar, Khmer; kana; Chinese characters with their extensions; Hangul. Hangul has
# spaces, but its words carry their particles.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    r"\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_ACCENTS = "[\u0300-\u036f]*"
_LETTER = rf"[^\W_{_UNSPACED}]"  # of a word with spaces around it
_alone = re.compile(f"([{_UNSPACED}])")
_piece = re.compile(f"{_LETTER}(?:{_LETTER}|[\u0300-\u036f])*|[{_UNSPACED}]")


class _Folded(dict[int, str]):
    """A table for ``str.translate`` that fills itself; one character always becomes one, so that
    places in the folded text are places in the text."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        # The parts of a Hangul syllable are letters, and a kana with a mark is another kana.
        base = letter if _alone.match(letter) else unicodedata.normalize("NFD", letter)[0]
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
    return text.lower() if text.isascii() else _alone.sub(" \\1 ", fold(text))


def words_of(query: str) -> list[str]:
    """The words that a user typed, those without a letter or digit left out: the index has none of
    them. Signs within a word stay: they join its parts to a phrase."""
    words = query.replace("\0", " ").split()
    return [word for word in words if _piece.search(word)]


def expression(words: list[str], *, unfinished: bool) -> str:
    """A search for all ``words`` in FTS5's language, in quotes, so that nothing of them is an
    operator; the last may be the start of a word if ``unfinished``."""
    quoted = ['"' + spaced(word).replace('"', '""') + '"' for word in words]
    if unfinished and quoted:
        quoted[-1] += "*"
    return " AND ".join(quoted)


def pattern(word: str, *, unfinished: bool) -> re.Pattern[str]:
    """What finds in a folded text the places for which the index finds ``word``."""
    pieces = _piece.findall(fold(word))
    parts = []
    for number, piece in enumerate(pieces):
        if _alone.match(piece):
            parts.append(piece)
            continue
        letters = _ACCENTS.join(re.escape(letter) for letter in piece) + _ACCENTS
        last = unfinished and number == len(pieces) - 1
        parts.append(f"(?<!{_LETTER}){letters}" + ("" if last else f"(?!{_LETTER})"))
    return re.compile(r"[\W_]*".join(parts))
