"""JSON lines as bytes, and what is said when they cannot be written."""

import codecs
import errno
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtimes.errors import OutOfMemoryError, RequestError

# Making an encoder takes longer than most lines.
_READABLE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ESCAPED = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def dump_line(value: Mapping[str, Any]) -> bytes:
    """One JSON line in UTF-8 that any reader takes. Half a surrogate pair has no UTF-8, and many
    readers refuse its escape, with all lines after it: it becomes the text of that escape."""
    return _READABLE.encode(value).encode("utf-8", errors=_AS_TEXT) + b"\n"


def exact_line(value: dict[str, Any]) -> bytes:
    """One JSON line that Python reads back as it was, half surrogate pairs too."""
    try:
        return _READABLE.encode(value).encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return _ESCAPED.encode(value).encode("ascii") + b"\n"


@contextmanager
def writing(path: Path, kept: str = "") -> Iterator[None]:
    """Raises OutOfMemoryError (also for a full disk) or RequestError where ``path`` cannot be
    written; ``kept`` says where the answers are."""
    try:
        yield
    except OSError as error:
        said = f"{path} cannot be written: {error.strerror or error}"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise RequestError(said) from error
        again = f". {kept}; make room and run the same command again" if kept else ""
        raise OutOfMemoryError(said + again) from error


def _escapes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    halves = error.object[error.start : error.end]
    return "".join(f"\\\\u{ord(half):04x}" for half in halves), error.end


_AS_TEXT = "ingot.escapes-as-text"
codecs.register_error(_AS_TEXT, _escapes)
