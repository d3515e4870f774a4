"""What a path that is being typed may become."""

from __future__ import annotations

import os
from pathlib import Path

_MOST_ENTRIES = 20_000  # of one folder; a larger one is looked at in part


def completions(text: str, most: int = 50) -> list[str]:
    """Paths that begin with ``text``, folders first and with a slash at their end.

    The part that was typed stays as it was, a ~ included. Hidden names only when the name begins
    with a dot. A folder that cannot be read has none.
    """
    head, slash, name = text.rpartition("/")
    folder = Path(os.path.expanduser(head + slash) or ".")
    folders, files = [], []
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_MOST_ENTRIES), entries, strict=False):
                if not _begins(entry.name, name):
                    continue
                if _is_folder(entry):
                    folders.append(f"{head}{slash}{entry.name}/")
                else:
                    files.append(f"{head}{slash}{entry.name}")
    except (OSError, ValueError):  # ValueError: a NUL in the text
        return []
    return (sorted(folders) + sorted(files))[:most]


def _begins(name: str, typed: str) -> bool:
    if not typed:
        return not name.startswith(".")
    # As shells on most systems do, but without asking for the right case.
    return name.lower().startswith(typed.lower())


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
