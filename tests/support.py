"""What tests of every package share: waiting, homes of their own, files of rows."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest

from runtimes.paths import cache_dir, state_dir

T = TypeVar("T")
# What all tests share, before one of them has a home of its own.
_STATE, _CACHE = state_dir(), cache_dir()


def until(look: Callable[[], T], enough: Callable[[T], object] = bool, seconds: float = 120.0) -> T:
    """Look again and again until what is seen is ``enough``, and return it."""
    limit = time.monotonic() + seconds
    while not enough(seen := look()):
        assert time.monotonic() < limit, f"it did not happen in time: {seen}"
        time.sleep(0.01)
    return seen


async def wait_until(true: Callable[[], Any], seconds: float = 90.0) -> None:
    """Let the event loop go on until ``true()``; fails after ``seconds``."""
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it did not happen in time"
        await asyncio.sleep(0.005)


@contextmanager
def own_home(folder: Path) -> Iterator[Path]:
    """Within it ``folder`` is INGOT_HOME, furnished: for fixtures of more than one test."""
    furnish(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_HOME", str(folder))
        yield folder


def furnish(home: Path) -> None:
    """Give it what takes seconds to find out or to download, which all tests share: whether the
    runtimes work, and llama.cpp's source."""
    known = _STATE / "selftest.json"
    if known.is_file():
        (home / "state").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(known, home / "state" / known.name)
    link_source(home)


def link_source(home: Path) -> None:
    """Give it llama.cpp's source, 76 MB that pip would fetch and unpack for each build."""
    (home / "cache").mkdir(parents=True, exist_ok=True)
    for name in ("sdists", "converter"):
        (_CACHE / name).mkdir(parents=True, exist_ok=True)
        if not (home / "cache" / name).exists():
            (home / "cache" / name).symlink_to(_CACHE / name, target_is_directory=True)


def questions(count: int) -> list[dict[str, Any]]:
    """Rows that all differ, so that answers cannot be mixed up unseen."""
    return [
        {"id": f"row-{i}", "prompt": f"What is {i % 90 + 10} + {i // 90}?"} for i in range(count)
    ]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """A JSONL file of them."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What a JSONL file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def set_clock(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, seconds: Callable[[], float]
) -> None:
    """``time.monotonic`` of this module alone: threads that run beside a test, such as a server's,
    have timers by the real one."""
    own = SimpleNamespace(**{**vars(time), "monotonic": seconds})
    monkeypatch.setattr(module, "time", own)


def with_context(source: Path, context: int, out: Path) -> Path:
    """A copy of a GGUF file of Llama's architecture that says it has so long a ``context``."""
    data = bytearray(source.read_bytes())
    name = b"llama.context_length"
    at = data.index(name) + len(name) + 4  # behind the type of the value
    struct.pack_into("<I", data, at, context)
    out.write_bytes(data)
    return out
