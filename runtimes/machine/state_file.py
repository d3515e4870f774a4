"""Small JSON files in the state folder: what was learned about this machine."""

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from runtimes.machine.locks import one_writer
from runtimes.paths import state_dir
from runtimes.untrusted import load_json

log = logging.getLogger(__name__)


def load_state(name: str) -> dict[str, Any]:
    """Load the state that ``save_state`` stored under this name; empty when nothing readable is
    there."""
    try:
        return _read(name)
    except OSError as error:
        log.debug("%s cannot be read: %s", _path(name), error)
        return {}


def save_state(name: str, value: dict[str, Any]) -> None:
    """Store ``value``; readers see the old file or the new one, never a part.

    A state folder that cannot be written costs time at the next start, so it is no error.
    """
    change_state(name, lambda _: value, anew=True)


def save_entry(name: str, key: str, value: Any, most: int) -> None:
    """Store ``value`` under ``key``, as the latest of at most so many entries; None drops it."""

    def change(entries: dict[str, Any]) -> dict[str, Any]:
        entries.pop(key, None)
        if value is not None:
            entries = {**dict([*entries.items()][-(most - 1) :]), key: value}
        return entries

    change_state(name, change)


def change_state(
    name: str, change: Callable[[dict[str, Any]], dict[str, Any]], *, anew: bool = False
) -> None:
    """Store what ``change`` makes of the present value, which no other process changes meanwhile;
    of an empty one with ``anew``. A file that is there and cannot be read stays as it is, unless
    it is damaged. No error, as ``save_state``."""
    path = _path(name)
    try:
        with one_writer(path.parent):
            value = change({} if anew else _read(name))
            with replacement(path) as file:
                file.write(json.dumps(value, indent=1).encode())
    except OSError as error:
        log.info("cannot remember %s: %s", path, error)


def _read(name: str) -> dict[str, Any]:
    """The value; empty if there is none, or no use in it. Raises OSError."""
    try:
        value = load_json(_path(name))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        log.debug("forgetting %s: %s", _path(name), error)
        return {}
    return value if isinstance(value, dict) else {}


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` once all of it is on the disk: readers see the old
    one or the new one, never a part. Only its owner can read it. Raises OSError."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _path(name: str) -> Path:
    return state_dir() / f"{name}.json"
