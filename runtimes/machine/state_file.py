"""Small JSON files in the state folder: what was learned about this machine."""

import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from runtimes.paths import state_dir

log = logging.getLogger(__name__)


def load_state(name: str) -> dict[str, Any]:
    """What ``save_state`` stored under this name; empty when nothing readable is there."""
    try:
        value = json.loads(_path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.debug("forgetting %s: %s", _path(name), error)
        return {}
    return value if isinstance(value, dict) else {}


def save_state(name: str, value: dict[str, Any]) -> None:
    """Store ``value``; readers see the old file or the new one, never a part.

    A state folder that cannot be written costs time at the next start, so it is no error.
    """
    path = _path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(value, stream, indent=1)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        log.info("cannot remember %s: %s", path, error)


def save_entry(name: str, key: str, value: Any, most: int) -> None:
    """Store ``value`` under ``key``, as the latest of at most so many entries; None drops it."""
    entries = load_state(name)
    entries.pop(key, None)
    if value is not None:
        entries = {**dict([*entries.items()][-(most - 1) :]), key: value}
    save_state(name, entries)


def _path(name: str) -> Path:
    return state_dir() / f"{name}.json"
