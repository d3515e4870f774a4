"""Paths that users give, and the working folder, which may have been deleted while a program runs
in it: what is below it is not found then, and what is elsewhere still is."""

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runtimes.errors import RequestError


def here() -> Path:
    """The working folder; of one that was deleted, no path."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()


def whole(path: Path) -> Path:
    """``path`` from the root, if there is a working folder."""
    return here() / path


def real(path: Path) -> Path:
    """``path`` from the root, with all links followed; as it is where they lead in a circle."""
    try:
        return path.resolve()
    except (FileNotFoundError, RuntimeError):
        return path


def same_file(one: Path, other: Path) -> bool:
    """True when two paths lead to one file, which need not exist yet."""
    with suppress(OSError):
        return os.path.samefile(one, other)
    with suppress(OSError):  # the working folder was deleted
        return os.path.realpath(one) == os.path.realpath(other)
    return False


def numbered(stem: str) -> Iterator[str]:
    """Names to try until one is free: ``stem``, then with -2, -3 and so on behind it."""
    yield stem
    for number in itertools.count(2):
        yield f"{stem}-{number}"


def reason(error: Exception) -> str:
    """The system's words for an error, or the error's own."""
    return getattr(error, "strerror", None) or str(error)


def named_text(path: Path, encoding: str = "utf-8", most: int = 32 * 2**20) -> str:
    """The text in a file, pipe or device that a user names, of at most so many bytes: /dev/zero has
    no end. Raises OSError, and ValueError for what is too large or no text."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data.decode(encoding)


def given_text(path: Path, most: int = 32 * 2**20) -> str:
    """``named_text`` for a user. Raises RequestError that says what is wrong with the file."""
    try:
        return named_text(path, most=most)
    except (OSError, ValueError) as error:
        raise RequestError(f"{str(path)[:200]} cannot be read: {reason(error)}") from error


def at_home(path: str | Path) -> Path:
    """``path`` with ``~`` as the home folder. The name of an unknown user stays in it: people may
    still be typing."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
