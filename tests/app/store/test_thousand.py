"""Chats and stores as large as they get."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.store.store import Store
from tests.app.store.long_chats import fill


def test_a_chat_of_a_thousand_messages_is_whole(store: Store) -> None:
    chat = fill(store, 1000, branches=3)
    messages = store.messages(chat.id)
    assert len(messages) == chat.count == 1003
    by_id = {message.id: message for message in messages}
    path, at = [], chat.leaf
    while at is not None:
        path.append(by_id[at])
        at = by_id[at].parent
    assert len(path) == 1000
    assert path[-1].text.startswith("Question 1:")
    assert path[0].figures is not None
    assert path[0].token_ids


def test_a_deleted_chat_of_a_thousand_is_purged(store: Store) -> None:
    """A cascade down the chain of parents would end at SQLite's depth of 1000."""
    chat = fill(store, 1200)
    store.delete_chat(chat.id)
    assert store.purge(0) == 1
    with store._database.reading() as db:
        assert db.execute("SELECT count(*) FROM messages").fetchone()[0] == 0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "chats.db"
    with Store.open(path) as store:
        for seed in range(2):
            fill(store, 500, seed=seed)
        fill(store, 1000, seed=99)
    return path


def _best(do: object, times: int = 5) -> float:
    seconds = []
    for _ in range(times):
        began = time.thread_time()  # SQLite works in this thread
        do()  # type: ignore[operator]
        seconds.append(time.thread_time() - began)
    return min(seconds)


def test_reading_and_searching_cost_what_they_may(large: Path) -> None:
    """Loose limits, because test machines are busy; docs/chat.md has what was measured."""
    with Store.open(large) as store:
        chat = store.chats()[0]
        assert _best(lambda: store.messages(chat.id)) < 0.15
        for query in ("question 3", "w", "the", "the of an", "nowhere"):
            assert _best(lambda query=query: store.search(query)) < 0.15, query
