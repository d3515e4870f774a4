"""Drafts on their way to the disk: the newest state counts, whatever the order of threads."""

from app.chat.session import Drafts
from app.chat.store.store import ChatStore


def test_an_older_state_changes_nothing(store: ChatStore):
    drafts, chat = Drafts(store, lambda: store.new_chat().id), store.new_chat().id
    drafts.keep({chat: "newer"}, 2)
    drafts.keep({chat: "older"}, 1)
    assert store.draft(chat) == "newer"
    drafts.forget(chat, 3)
    assert store.draft(chat) == ""
    drafts.keep({chat: "sent meanwhile"}, 3)
    assert store.draft(chat) == ""
    drafts.keep({chat: "the next"}, 4)
    assert store.draft(chat) == "the next"
