"""Checks of what comes from elsewhere: names of files, digests, the size of parsed values, text.

Every name that a manifest, a journal, a hub, a client or a model folder gives passes `inside` or
`check_name` before a file is opened, moved or removed through it; every text from there passes
`visible` before a terminal or a log shows it. What is trusted, and with what: SECURITY.md. Standard
library only.
"""

import json
import os
import re
import shutil
import stat
import unicodedata
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from runtimes.errors import IngotError, ModelError

JsonObject = dict[str, Any]
Fields = Mapping[str, Any]  # of one that is only read
_MOST_NAME, _MOST_PART = 1024, 255  # bytes in UTF-8
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Characters by which a terminal, or a reader of its text, takes data for a command: C0, DEL and C1
# controls, line and paragraph separators, and what turns the direction of the text around it.
_TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN = (
    {code: chr(0x2400 + code) for code in range(0x20)}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *_TURNS)}
)
_LINES_SHOWN = {code: text for code, text in _SHOWN.items() if code not in (0x09, 0x0A)}


def check_name(name: object, where: str, error: type[IngotError] = ModelError) -> str:
    """``name``, a relative path with "/" between its parts. ``where`` is who gives it.

    Raises ``error`` for what is no such path or could leave the folder that it is put into: an
    absolute path, a part that is empty, "." or "..", a backslash, a drive, a control character,
    half a surrogate pair, more bytes than file systems take.
    """
    why = "is not a text"
    if isinstance(name, str):
        why = _wrong_name(name)
        if not why:
            return name
    raise error(f"{where} names the file {visible(repr(name))[:200]}, which {why}")


def _wrong_name(name: str) -> str:
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        return "cannot be written in UTF-8"
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or "\\" in name or re.match(r"[A-Za-z]:", name):
        return "is outside its folder"
    if any(unicodedata.category(char) == "Cc" for char in name) or visible(name) != name:
        return "has control characters"
    if len(raw) > _MOST_NAME or max(len(part.encode()) for part in parts) > _MOST_PART:
        return "is too long"
    return ""


def inside(folder: Path, name: object, where: str, error: type[IngotError] = ModelError) -> Path:
    """The path of ``name`` below ``folder``, which need not exist. ``folder`` itself may be a link.

    Raises ``error`` as `check_name`, and where a part of the path below ``folder`` is a link.
    """
    path = folder
    for part in check_name(name, where, error).split("/"):
        path = path / part
        if is_link(path):
            raise error(
                f"{where} names {visible(str(path))}, which is a link: Ingot neither writes nor"
                " removes through links that it did not make"
            )
    return path


def is_link(path: Path) -> bool:
    """Whether ``path`` is a symbolic link, or a junction of Windows."""
    return path.is_symlink() or bool(getattr(os.path, "isjunction", lambda _: False)(path))


def remove(folder: Path, name: str, where: str, error: type[IngotError] = ModelError) -> None:
    """Remove the file or folder ``name`` below ``folder``, if there is one; never through a link.

    Raises ``error`` as `inside`, and OSError where something cannot be removed.
    """
    path = inside(folder, name, where, error)
    if path.is_dir():
        shutil.rmtree(path)  # does not follow links either
    else:
        path.unlink(missing_ok=True)


def check_digest(text: object, where: str, error: type[IngotError]) -> str:
    """``text``, a SHA-1 or SHA-256 in 40 or 64 small hexadecimal digits. Raises ``error``."""
    if isinstance(text, str) and _DIGEST.fullmatch(text):
        return text
    raise error(f"{where} gives the checksum {visible(repr(text))[:80]}: not 40 or 64 hex digits")


def check_whole(value: object, where: str, least: int = 0, most: int = 2**32 - 1) -> int:
    """``value``, a whole number from ``least`` to ``most``; a float that is one counts. ``where``
    is the file and key that give it. Raises ModelError for anything else, booleans included."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    if isinstance(value, int) and value.bit_length() > 128:  # Python may refuse to write it
        value = "a number of many digits"
    said = visible(repr(value[:3] if isinstance(value, (list, str)) else value))[:60]
    raise ModelError(f"{where} is {said}, not a whole number from {least:,} to {most:,}")


def visible(text: str, *, lines: bool = False) -> str:
    """``text`` with every control character shown instead of sent: ESC as "\u241b".

    With ``lines``, tabs and line ends stay, those of Windows as line feeds: for texts of several
    lines, such as answers. A name or a message is one line. Half a surrogate pair becomes its
    number.
    """
    if text.isprintable():
        return text
    if lines:
        text = text.replace("\r\n", "\n")
    shown = text.translate(_LINES_SHOWN if lines else _SHOWN)
    return shown if shown.isprintable() else shown.encode("utf-8", "backslashreplace").decode()


_NUMBERS = frozenset({int, float, bool, type(None)})
_LISTS = (list, tuple, set, frozenset, KeysView, ItemsView, ValuesView)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a parsed value may hold."""

    depth: int = 64  # lists and objects within each other
    values: int = 100_000  # of any kind, keys included
    characters: int = 32 * 2**20  # of all texts, keys included


def excess(value: Any, bounds: Bounds) -> str | None:
    """Describe the part of a parsed JSON or YAML ``value`` that is beyond ``bounds``, in words that
    continue its name; None where all is within. Works level by level: no depth overflows the
    stack."""
    values = characters = depth = 0
    level = [value]
    while level:
        below: list[Any] = []
        for one in level:
            values += 1
            if isinstance(one, str):
                characters += len(one)
            elif isinstance(one, Mapping):
                values += len(one)
                characters += sum(len(key) for key in one if isinstance(key, str))
                below.extend(one.values())
            elif isinstance(one, _LISTS):
                if _NUMBERS.issuperset(map(type, one)):  # token ids: a million, and nothing in them
                    values += len(one)
                else:
                    below.extend(one)
            if values + len(below) > bounds.values:
                return f"has more than {bounds.values:,} values"
            if characters > bounds.characters:
                return f"has more than {bounds.characters:,} characters"
        level = below
        nested = any(isinstance(one, (Mapping, *_LISTS)) for one in level)
        depth += 1
        if nested and depth >= bounds.depth:
            return f"is nested too deeply: more than {bounds.depth} levels"
    return None


def open_regular(path: Path) -> BinaryIO:
    """The file ``path``, open for reading. Raises OSError where there is none, and ValueError for a
    pipe, which is not waited for, and for a device."""
    file = open(path, "rb", opener=_no_wait)  # noqa: SIM115 -- it is the caller's
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise ValueError("it is no regular file")


_MOST_JSON = 32 * 2**20  # bytes of a file
_JSON = Bounds(values=2_000_000)  # an index of the largest models has 200,000


def load_json(path: Path, most: int = _MOST_JSON) -> Any:
    """The JSON value in the file ``path``, which comes from elsewhere and may be anything.

    Raises OSError where there is no such file, and ValueError, which says why, for a pipe or
    device, for more than ``most`` bytes, and as `parse_json`.
    """
    with open_regular(path) as file:
        return parse_json(file.read(most + 1), most)


def parse_json(raw: bytes, most: int = _MOST_JSON) -> Any:
    """The JSON value in ``raw``. Raises ValueError for more than ``most`` bytes, for what is no
    JSON in UTF-8, and for what is too large or deep for a program to go on with."""
    if len(raw) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    if sum(map(raw.count, (b",", b"[", b"{"))) > _JSON.values:  # before it takes memory
        raise ValueError(f"it has more than {_JSON.values:,} values")
    text = raw.decode("utf-8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if beyond := excess(value, _JSON):
        raise ValueError(f"it {beyond}")
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # halves of pairs cannot be written again
    return value


def _no_wait(path: str, flags: int) -> int:
    """Open a pipe without waiting for its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
