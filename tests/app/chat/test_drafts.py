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


def test_a_draft_without_a_chat_gets_one(store: ChatStore):
    drafts = Drafts(store, lambda: store.new_chat().id)
    drafts.keep({None: "  "}, 1)
    assert store.chats() == []
    drafts.keep({None: "half"}, 2)
    drafts.keep({None: "half a sentence"}, 3)
    (chat,) = store.chats()
    assert store.draft(chat.id) == "half a sentence"
    assert drafts.take(chat.id + 1) is None
    assert drafts.take(chat.id) == chat.id
    assert drafts.take() is None
    drafts.keep({None: "another"}, 4)
    assert len(store.chats()) == 2
    drafts.keep({None: ""}, 5)
    store.add_message(chat.id, None, "said")
    store.discard(chat.id)
    assert [one.id for one in [*store.chats(), *store.deleted()]] == [chat.id]
    store.close()
    drafts.keep({chat.id: "text"}, 6)  # is no error
