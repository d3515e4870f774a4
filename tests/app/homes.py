"""A home of a test's own (INGOT_HOME) that has what takes long to find out or to download."""

from __future__ import annotations

import shutil
from pathlib import Path

from runtimes.paths import cache_dir, state_dir


def know_runtimes(home: Path) -> None:
    """Give it what is known of the runtimes: testing those takes seconds."""
    known = state_dir() / "selftest.json"
    if known.is_file():
        (home / "state").mkdir(parents=True)
        shutil.copyfile(known, home / "state" / known.name)


def link_source(home: Path) -> None:
    """Give it llama.cpp's source, 76 MB that pip would fetch and unpack for each build."""
    (home / "cache").mkdir(parents=True)
    for name in ("sdists", "converter"):
        if (cache_dir() / name).is_dir():
            (home / "cache" / name).symlink_to(cache_dir() / name, target_is_directory=True)
