"""The full-text search finds what a person would expect, and shows where."""

from dataclasses import replace

import pytest

from app.chat.store.records import Hit, State
from app.chat.store.store import ChatStore


def _marked(hit: Hit) -> list[str]:
    return [hit.snippet[start:end] for start, end in hit.marks]


@pytest.fixture
def say(store: ChatStore):
    def say(text: str, title: str | None = "-") -> int:
        chat = store.new_chat(title=title)
        store.add_message(chat.id, None, text)
        return chat.id

    return say


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("The Café is open", "cafe", ["Café"]),
        ("cafe", "CAFÉ ", ["cafe"]),
        ("Cafe\u0301 noir", "café n", ["Cafe\u0301", "n"]),
        ("STRASSE und Straße", "straße", ["Straße"]),
        ("searching", "sear", ["sear"]),
        ("he said hello world twice", "world hello", ["hello", "world"]),
        ("say foo-bar here", "foo-bar", ["foo-bar"]),
        ("cats AND dogs OR mice", "AND OR", ["AND", "OR"]),
        ('a "quoted" word', '"quoted"', ["quoted"]),
        ("NEAR things", "NEAR(things", ["NEAR things"]),
        ("C++ or Rust", "c++", ["C"]),
        ("a -> b", "->", ["->"]),
        ("100% of _it_", "%", ["%"]),
        ("今天天气很好", "天气", ["天气"]),
        ("東京タワー", "タワ", ["タワ"]),
        ("สวัสดีครับ", "ครับ", ["ครับ"]),
        ("use Python3で書く", "python3で", ["Python3で"]),
        ("हिन्दी में लिखो", "हिन्दी", ["हिन्दी"]),
        ("Ελλάδα", "ελλαδα", ["Ελλάδα"]),
    ],
)
def test_found(store: ChatStore, say, text: str, query: str, marked: list[str]):
    chat = say(text)
    say("something else entirely")
    (hit,) = store.search(query)
    assert hit.chat.id == chat
    assert hit.snippet == text
    assert set(marked) <= set(_marked(hit))


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("searching", "search "),  # a space says that the word is whole
        ("searching", "arch"),
        ("hello", "hello there"),
        ("foo and then bar", "foo-bar"),
        ("abc", "a*c"),
        ("天气", "气天"),
        ("a_b", "%"),
        ("abc", ""),
        ("abc", "\0"),
        ("abc", "\ud800"),
    ],
)
def test_not_found(store: ChatStore, say, text: str, query: str):
    say(text)
    assert store.search(query) == []


def test_a_whole_word_is_not_shown_within_a_longer_one(store: ChatStore, say):
    say("A category of cats, with one cat among them")
    assert _marked(store.search("cat ")[0]) == ["cat"]
    assert _marked(store.search("cat am")[0]) == ["cat", "am"]
    assert _marked(store.search("cat")[0]) == ["cat"] * 3


@pytest.mark.parametrize(
    "query", ['"', '""', "'", "*", "^", "a*", '"a', "a OR", "(", "{a b}: c", "a\0b", "𐎀", "\u0301"]
)
def test_no_query_fails(store: ChatStore, say, query: str):
    say("a b c " + query.replace("\0", " "))
    store.search(query)
    store.search(query + " ")


def test_titles_come_first_then_the_newest(store: ChatStore, say):
    old = say("a word about melons", "fruit")
    titled = say("nothing of it", "Melons and more")
    newer = say("two melons", "market")
    both = say("melons again", "About melons")
    hits = store.search("melon")
    assert [hit.chat.id for hit in hits] == [both, titled, newer, old]
    assert [hit.message is None for hit in hits] == [False, True, False, False]
    assert hits[1].snippet == "Melons and more"
    assert _marked(hits[1]) == ["Melon"]
    assert [hit.chat.id for hit in store.search("melon", limit=2)] == [both, titled]
    store.update_chat(titled, title="Renamed")
    store.delete_chat(both)
    assert [hit.chat.id for hit in store.search("melon")] == [newer, old]


def test_answers_are_found_when_they_have_ended(store: ChatStore):
    chat = store.new_chat()
    asked = store.add_message(chat.id, None, "x")
    answer = store.begin_answer(chat.id, asked.id)
    store.save_answer(answer.id, "quinces", [1])
    assert store.search("quinces") == []
    store.end_answer(replace(answer, text="quinces and pears", token_ids=(1,), state=State.DONE))
    assert store.search("quinces")[0].message == answer.id
    store.resume_answer(answer.id)
    store.end_answer(replace(answer, text="apples", token_ids=(1,), state=State.DONE))
    assert store.search("quinces") == []
    assert store.search("apples")[0].message == answer.id
    store.update_chat(chat.id, title="fruit")
    with store.writing() as db:
        for table in ("messages_fts", "chats_fts"):
            # With rank 1 SQLite compares the index with the texts, and fails if they differ.
            db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 1)")


def test_a_long_text_is_shown_around_the_match(store: ChatStore, say):
    say("begin " + "before " * 200 + "needle\n\n\tafter " + "after " * 200)
    (hit,) = store.search("needle")
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert "before needle after after" in hit.snippet
    assert len(hit.snippet) <= 130
    assert _marked(hit) == ["needle"]
    say("x" * 300_000 + " thimble")
    (hit,) = store.search("thimble")  # too far in to be looked for
    assert hit.marks == ()
