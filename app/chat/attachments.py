"""Files that go with a message: read as text with care, and put into the prompt."""

import codecs
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from app.chat.store.records import Attachment
from app.documents import DocumentError, Documents, document_kind
from app.here import at_home, reason
from runtimes.errors import RequestError

MOST_BYTES = 1_000_000
_MOST_ENTRIES = 20_000
_MOST_PATHS = 50
_HEAD = 8192  # bytes in which a file shows that it is no text
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_RUNS = re.compile(r"`{3,}|~{3,}")


class AttachmentError(RequestError):
    """The file cannot go with a message."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A file's text; ``warning`` says what was changed of it."""

    attachment: Attachment
    warning: str | None = None


def read_attachment(path: str | Path) -> Attached:
    """Read a text file: UTF-8, with U+FFFD for what is none, or UTF-16 with its byte order mark; or
    the text of a PDF or Word document.

    ``~`` is the home folder. Blocks. Raises AttachmentError for what is missing, not a file, too
    large, not readable, or not text; RequestError for a PDF without the package that reads it.
    """
    try:
        file = at_home(path)
        text, warning = _text(path, file, _read(file))
    except FileNotFoundError:
        raise AttachmentError(f"{path}: there is no such file") from None
    except PermissionError:
        raise AttachmentError(f"{path}: reading it is not permitted") from None
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the path; no home folder
        raise AttachmentError(f"{path}: it cannot be read: {reason(error)}") from error
    except DocumentError as error:
        raise AttachmentError(f"{path}: {error}") from error
    if not text.strip():
        raise AttachmentError(f"{path}: it is empty")
    return Attached(Attachment(file.name, text), warning)


def _read(file: Path) -> bytes:
    found = file.stat()
    if stat.S_ISDIR(found.st_mode):
        raise AttachmentError(f"{file}: it is a folder; attach the files in it one by one")
    if not stat.S_ISREG(found.st_mode):
        raise AttachmentError(f"{file}: it is a device or a pipe, not a file")
    with file.open("rb") as stream:
        return stream.read(MOST_BYTES + 1)


def _text(path: str | Path, file: Path, data: bytes) -> tuple[str, str | None]:
    """The text of ``file``, which begins with ``data``, and a warning about it."""
    if kind := document_kind(file.name, data):
        with Documents() as documents:
            text, warning = documents.text(file, kind)
        _require_small(path, len(text.encode()), "its text")
        return text, warning and f"{path}: {warning}"
    _require_small(path, max(file.stat().st_size, len(data)), "it")
    return _decode(path, data)


def _require_small(path: str | Path, size: int, what: str) -> None:
    if size > MOST_BYTES:
        raise AttachmentError(
            f"{path}: {what} has {size / 1e6:.1f} MB; at most {MOST_BYTES / 1e6:g} MB can be"
            " attached"
        )


def _decode(path: str | Path, data: bytes) -> tuple[str, str | None]:
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    marked = wide or data.startswith(codecs.BOM_UTF8)
    if not marked and any(byte in _CONTROL for byte in data[:_HEAD]):
        raise AttachmentError(f"{path}: it is not a text file")
    text = data.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    wrong = text.count("\ufffd") - data.count("\ufffd".encode())
    if wrong > max(8, len(text) // 10):
        raise AttachmentError(f"{path}: it is neither text in UTF-8 nor in UTF-16; convert it")
    text = text.replace("\r\n", "\n").replace("\x00", "\ufffd")
    if wrong <= 0:
        return text, None
    return text, f"{path} is not all UTF-8: U+FFFD stands {wrong} times for what is not"


def with_attachments(text: str, attachments: Sequence[Attachment]) -> str:
    """The message as the model gets it: every file by its name in a fence of its own, then the
    text."""
    parts = []
    for one in attachments:
        longest = max((len(run) for run in _RUNS.findall(one.text)), default=2)
        fence = "`" * (longest + 1)
        name = " ".join(one.name.split())
        parts.append(f"File {name}:\n{fence}\n{one.text.rstrip()}\n{fence}")
    return "\n\n".join([*parts, text] if text.strip() or not parts else parts)


def complete_path(text: str) -> list[str]:
    """Paths that ``text`` begins, in any case of letters: folders first, with a slash at their end;
    hidden ones only after a dot.

    They are written as ``text`` is (relative, ``~``), sorted; none on any error. Of a folder with
    very many entries, some are looked at.
    """
    head, _, start = text.rpartition("/")
    folder = f"{head}/" if "/" in text else ""
    found: list[tuple[bool, str]] = []
    try:
        with os.scandir(at_home(folder or ".")) as entries:
            for entry in islice(entries, _MOST_ENTRIES):
                hidden = entry.name.startswith(".") and not start.startswith(".")
                fits = entry.name.lower().startswith(start.lower())
                if fits and not hidden and entry.name.isprintable():
                    found.append((not entry.is_dir(), entry.name))
    except (OSError, ValueError, RuntimeError):
        return []
    shown = sorted(found)[:_MOST_PATHS]
    return [f"{folder}{name}{'' if plain else '/'}" for plain, name in shown]
