"""Chats and stores as large as they get."""

import sqlite3
from pathlib import Path

import pytest

from app.chat.store import store as store_module
from app.chat.store.database import connect
from app.chat.store.store import ChatStore
from tests.app.chat.store.long_chats import fill


def test_a_deleted_chat_of_a_thousand_is_purged(store: ChatStore, monkeypatch: pytest.MonkeyPatch):
    """A cascade down the chain of parents would end at SQLite's depth of 1000."""
    chat = fill(store, 1200)
    store.delete_chat(chat.id)
    monkeypatch.setattr(store_module, "_KEEP_DELETED_S", 0.0)
    with ChatStore.open(store.path):
        assert store.deleted() == []
    with store.reading() as db:
        assert db.execute("SELECT count(*) FROM messages").fetchone()[0] == 0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "chats.db"
    with ChatStore.open(path) as store:
        for seed in range(2):
            fill(store, 500, seed=seed)
        fill(store, 1000, seed=99)
    return path


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Thousands of instructions of SQLite's machine that readers have taken: the same anywhere."""
    taken = [0]

    def count() -> int:
        taken[0] += 1
        return 0

    def counted(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_progress_handler(count, 1000)
        return connection

    monkeypatch.setattr("app.chat.store.database.connect", counted)
    return taken


def test_reading_and_searching_take_little_work(large: Path, work: list[int]):
    """docs/chat.md has the times that were measured."""
    with ChatStore.open(large) as store:
        chat = store.chats()[0]
        assert len(store.messages(chat.id)) == 1000
        assert 0 < work[0] < 100
        for query in ("question 3", "w", "the", "the of an", "nowhere"):
            work[0] = 0
            store.search(query)
            assert work[0] < 100, query  # 18 at most where it was measured
