"""A store of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.chat.store.store import ChatStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


@pytest.fixture
def store(path: Path) -> Iterator[ChatStore]:
    with ChatStore.open(path) as opened:
        yield opened
