"""Chats and stores as large as they get."""

import pytest

from app.chat.store import store as store_module
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
