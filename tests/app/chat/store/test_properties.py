"""Any sequence of calls against a model of plain lists: the tree, the list of chats, the search."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.chat.store import store as store_module
from app.chat.store.records import State
from app.chat.store.store import ChatStore

# Words that are starts of others, other scripts, accents, signs.
_WORDS = ["a", "ab", "abc", "Äb", "b", "ба", "天", "天气", "a天b", "c-d", "->", "_", "ａ", '"b"']
_texts = st.lists(st.sampled_from(_WORDS), max_size=4).map(" ".join)
_pick = st.integers(0, 99)


def _tokens(text: str) -> list[str]:
    """The words that the sample texts have, by hand."""
    plain = text.lower().replace("ä", "a")
    return re.findall(r"天|气|(?:(?![天气])[^\W_])+", plain)


def _has(text: str, word: str, unfinished: bool) -> bool:
    wanted, there = _tokens(word), _tokens(text)
    for at in range(len(there) - len(wanted) + 1):
        window = there[at : at + len(wanted)]
        last = window[-1].startswith(wanted[-1]) if unfinished else window[-1] == wanted[-1]
        if window[:-1] == wanted[:-1] and last:
            return True
    return False


class Chats(RuleBasedStateMachine):
    """``chats`` and ``messages`` are what should be there, in the order in which it came."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "chats.db"
        self.store = ChatStore.open(self.path)
        self.chats: dict[int, dict[str, Any]] = {}
        self.messages: dict[int, dict[str, Any]] = {}

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def _one(self, among: Any, pick: int) -> Any:
        options = list(among)
        return options[pick % len(options)] if options else None

    def _parent(self, chat: int, pick: int) -> int | None:
        ours = [id for id, message in self.messages.items() if message["chat"] == chat]
        return self._one([None, *ours], pick)

    def _up(self, chat: int) -> None:
        self.chats[chat] = self.chats.pop(chat)  # the newest is last

    @rule(title=_texts)
    def new_chat(self, title: str) -> None:
        chat = self.store.new_chat(title=title)
        self.chats[chat.id] = {"title": title, "leaf": None, "deleted": False}

    @precondition(lambda self: self.chats)
    @rule(pick=_pick, parent=_pick, text=_texts)
    def say(self, pick: int, parent: int, text: str) -> None:
        chat = self._one(self.chats, pick)
        above = self._parent(chat, parent)
        message = self.store.add_message(chat, above, text)
        self.messages[message.id] = {"chat": chat, "parent": above, "text": text, "ended": True}
        self.chats[chat]["leaf"] = message.id
        self.chats[chat]["title"] = self.chats[chat]["title"] or " ".join(text.split())
        self._up(chat)

    @precondition(lambda self: self.chats)
    @rule(pick=_pick, parent=_pick)
    def begin(self, pick: int, parent: int) -> None:
        chat = self._one(self.chats, pick)
        above = self._parent(chat, parent)
        message = self.store.begin_answer(chat, above)
        self.messages[message.id] = {"chat": chat, "parent": above, "text": "", "ended": False}
        self.chats[chat]["leaf"] = message.id
        self._up(chat)

    def _streaming(self) -> list[int]:
        return [id for id, message in self.messages.items() if not message["ended"]]

    @precondition(lambda self: self._streaming())
    @rule(pick=_pick, text=_texts, anew=st.booleans())
    def save(self, pick: int, text: str, anew: bool) -> None:
        id = self._one(self._streaming(), pick)
        text = text if anew else self.messages[id]["text"] + text
        self.store.save_answer(id, text, range(len(text)))
        self.messages[id]["text"] = text

    @precondition(lambda self: self._streaming())
    @rule(pick=_pick, text=_texts)
    def end(self, pick: int, text: str) -> None:
        id = self._one(self._streaming(), pick)
        self.store.end_answer(
            replace(
                self.store.message(id),
                text=text,
                token_ids=tuple(range(len(text))),
                state=State.DONE,
            )
        )
        self.messages[id] |= {"text": text, "ended": True}
        self._up(self.messages[id]["chat"])

    @precondition(lambda self: self.chats)
    @rule(pick=_pick, title=_texts)
    def rename(self, pick: int, title: str) -> None:
        chat = self._one(self.chats, pick)
        self.store.update_chat(chat, title=title)
        self.chats[chat]["title"] = title

    @precondition(lambda self: self.chats)
    @rule(pick=_pick, to=_pick)
    def show(self, pick: int, to: int) -> None:
        chat = self._one(self.chats, pick)
        leaf = self._parent(chat, to)
        self.store.update_chat(chat, leaf=leaf)
        self.chats[chat]["leaf"] = leaf

    @precondition(lambda self: self.chats)
    @rule(pick=_pick, deleted=st.booleans())
    def delete_or_restore(self, pick: int, deleted: bool) -> None:
        self.delete_or_restore_chat(self._one(self.chats, pick), deleted)

    def delete_or_restore_chat(self, chat: int, deleted: bool) -> None:
        (self.store.delete_chat if deleted else self.store.restore_chat)(chat)
        self.chats[chat]["deleted"] = deleted

    @precondition(lambda self: self.messages)
    @rule(pick=_pick)
    def purge(self, pick: int) -> None:
        chat = self.messages[self._one(self.messages, pick)]["chat"]
        self.delete_or_restore_chat(chat, True)
        with mock.patch.object(store_module, "_KEEP_DELETED_S", 0.0):
            self.store.close()
            self.store = ChatStore.open(self.path)
        self.chats = {id: chat for id, chat in self.chats.items() if not chat["deleted"]}
        self.messages = {
            id: message for id, message in self.messages.items() if message["chat"] in self.chats
        }

    @rule()
    def open_again(self) -> None:
        """The process lives, so that what streams goes on to."""
        self.store.close()
        self.store = ChatStore.open(self.path)

    @rule(query=st.lists(st.sampled_from(_WORDS), min_size=1, max_size=2), whole=st.booleans())
    def search(self, query: list[str], whole: bool) -> None:
        words = [word for word in query if _tokens(word)]
        hits = self.store.search(" ".join(query) + " " * whole)

        def matches(text: str) -> bool:
            if not words:
                return " ".join(query) in text
            # Only the last word may be unfinished, also if it is the same as another.
            ends = [False] * (len(words) - 1) + [not whole]
            return all(_has(text, *pair) for pair in zip(words, ends, strict=True))

        newest: dict[int, int] = {}
        for id, message in sorted(self.messages.items()):
            # The index has an answer when it has ended.
            if message["ended"] and matches(message["text"]):
                newest[message["chat"]] = id
        shown = [id for id, chat in reversed(self.chats.items()) if not chat["deleted"]]
        titled = [id for id in shown if words and matches(self.chats[id]["title"])]
        others = sorted(newest.keys() - set(titled), key=lambda id: -newest[id])
        expected = titled + [id for id in others if id in shown]
        assert [(hit.chat.id, hit.message) for hit in hits] == [
            (id, newest.get(id)) for id in expected
        ]
        for hit in hits:
            assert hit.marks, hit
            assert all(0 <= a < b <= len(hit.snippet) for a, b in hit.marks)

    @invariant()
    def the_same(self) -> None:
        shown = self.store.chats(limit=1000)
        expected = [id for id, chat in reversed(self.chats.items()) if not chat["deleted"]]
        assert [chat.id for chat in shown] == expected
        assert {chat.id for chat in self.store.deleted()} == self.chats.keys() - set(expected)
        for id, wanted in self.chats.items():
            chat = self.store.chat(id)
            messages = self.store.messages(id)
            ours = {key: m for key, m in self.messages.items() if m["chat"] == id}
            assert (chat.title, chat.leaf) == (wanted["title"], wanted["leaf"])
            assert chat.count == len(messages) == len(ours)
            for message in messages:
                made = ours[message.id]
                assert (message.parent, message.text) == (made["parent"], made["text"])
                assert (message.state is State.STREAMING) == (not made["ended"])

    @invariant()
    def the_index_fits_the_texts(self) -> None:
        with self.store.writing() as db:
            for table in ("messages_fts", "chats_fts"):
                # With rank 1 SQLite compares the index with the texts, and fails if they differ.
                db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 1)")


Chats.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestChats = Chats.TestCase
