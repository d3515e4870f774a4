"""What is put into the store comes out, and stays consistent."""

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.store import store as store_module
from app.chat.store.errors import StoreError
from app.chat.store.records import AnswerFigures, Attachment, State
from app.chat.store.store import ChatStore
from app.tools.calls import CallState, ToolCall

FIGURES = AnswerFigures(10, 4, 3, 0.2, None, 15.5, 0.4, "stop")


def test_a_chat_comes_back_as_it_was(path: Path):
    with ChatStore.open(path) as store:
        chat = store.new_chat("pebble", "Be short.")
        sampling = {"temperature": 0.5, "stop": ["a", "b"]}
        store.update_chat(chat.id, sampling=sampling, tools={"time": True})
        assert chat.title == ""
        asked = store.add_message(
            chat.id, None, "What?\nAnd why?", attachments=[Attachment("a.txt", "α\nβ")]
        )
        begun = store.begin_answer(
            chat.id, asked.id, model="pebble · q8_0", file="/x/pebble.gguf", runtime="llamacpp"
        )
        assert begun.state is State.STREAMING
        answer = store.end_answer(
            replace(
                begun, text="That.", token_ids=(5, 70_000, 2), state=State.DONE, figures=FIGURES
            )
        )
        call = ToolCall("1", "x", "{}")
        store.save_calls(answer.id, [call])
        done = call.ended(CallState.DONE, "half \ud83d", 0.5)
        answer = store.save_calls(answer.id, [done, call])
        store.set_dropped([asked.id], True)
    with ChatStore.open(path) as store:
        again = store.chat(chat.id)
        assert again == store.chats()[0]
        assert (again.title, again.count, again.leaf) == ("What?", 2, answer.id)
        assert (again.model, again.system) == ("pebble", "Be short.")
        assert again.sampling == {"temperature": 0.5, "stop": ["a", "b"]}
        first, second = store.messages(chat.id)
        assert first.attachments == (Attachment("a.txt", "α\nβ"),)
        assert first.dropped
        assert second == answer
        assert second.token_ids == (5, 70_000, 2)
        assert second.calls == (replace(done, result="half \ufffd"), call)
        assert again.tools == {"time": True}
        assert second.figures == FIGURES
        assert (second.model, second.runtime) == ("pebble · q8_0", "llamacpp")


def test_deleting_can_be_undone_for_thirty_days(path: Path, monkeypatch: pytest.MonkeyPatch):
    with ChatStore.open(path) as store:
        chat = store.new_chat(title="kept")
        said = store.add_message(chat.id, None, "kept text")
        store.delete_chat(chat.id)
        deleted_at = store.chat(chat.id) and store_module.time.time()

    def open_after(days: float) -> list[int]:
        monkeypatch.setattr(store_module.time, "time", lambda: deleted_at + days * 86400)
        with ChatStore.open(path) as store:
            return [one.id for one in store.deleted()]

    assert open_after(29.9) == [chat.id]
    with ChatStore.open(path) as store:
        store.restore_chat(chat.id)
        assert store.messages(chat.id) == [said]
        assert [hit.chat.id for hit in store.search("kept")] == [chat.id]
        store.delete_chat(chat.id)
    assert open_after(29.9 + 30.1) == []
    with ChatStore.open(path) as store, pytest.raises(StoreError, match="no chat"):
        store.chat(chat.id)


def test_empty_chats_do_not_pile_up_and_drafts_are_kept_until_they_are_blank(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    with ChatStore.open(path) as store:
        now = store_module.time.time()
        nothing, named = store.new_chat(model="m"), store.new_chat(title="named")
        typed, used = store.new_chat(), store.new_chat()
        store.add_message(used.id, None, "x")
        store.keep_draft(typed.id, "half a\nsentence")
        assert store.chats()[0].id == typed.id, "what was typed last is what one goes on with"
    monkeypatch.setattr(store_module.time, "time", lambda: now + 90_000)
    with ChatStore.open(path) as store:
        assert {chat.id for chat in store.chats()} == {named.id, typed.id, used.id}
        assert store.new_chat().id > used.id > nothing.id
        assert store.draft(typed.id) == "half a\nsentence"
        store.keep_draft(typed.id, "  ")
        assert store.draft(typed.id) == ""
        with pytest.raises(StoreError, match="no chat 99"):
            store.keep_draft(99, "typed")


def test_a_message_that_nothing_follows_can_be_taken_back(store: ChatStore):
    chat = store.new_chat()
    first = store.add_message(chat.id, None, "the river")
    again = store.take_back(first.id, None)
    assert (again.title, again.count, again.leaf) == ("", 0, None)
    assert store.search("river") == []
    first = store.add_message(chat.id, None, "one")
    second = store.add_message(chat.id, None, "two")
    again = store.take_back(second.id, first.id)
    assert (again.title, again.count, again.leaf) == ("one", 1, first.id)
    store.begin_answer(chat.id, first.id)
    with pytest.raises(StoreError, match="has been answered"):
        store.take_back(first.id, None)


def test_what_is_not_there_is_said(store: ChatStore):
    chat, other = store.new_chat(), store.new_chat()
    message = store.add_message(other.id, None, "x")
    for do in (
        lambda: store.messages(99),
        lambda: store.add_message(99, None, "x"),
        lambda: store.add_message(chat.id, message.id, "of another chat"),
        lambda: store.update_chat(chat.id, leaf=message.id),
        lambda: store.save_answer(77, "x", []),
        lambda: store.end_answer(
            replace(store.message(77), text="x", token_ids=(), state=State.DONE)
        ),
        lambda: store.resume_answer(message.id),
        lambda: store.set_dropped([message.id, 77], True),
    ):
        with pytest.raises(StoreError, match=r"\b(no|77|1|99)\b") as raised:
            do()
        assert raised.value.exit_code == 2
    assert store.chat(chat.id).count == 0
    assert not store.message(message.id).dropped  # the whole call was undone
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.chats()


def test_any_text_can_be_stored(store: ChatStore):
    chat = store.new_chat(title="half \ud83d pair")
    for text in (
        "",
        "\0 in the \0 middle",
        "\ud83d alone",
        "\ud83d\ude00 pair",
        "é́🙂\u202e\x1b[31m",
    ):
        message = store.add_message(chat.id, None, text, attachments=[Attachment(text, text)])
        stored = store.message(message.id)
        assert stored.text == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert stored.attachments[0].text == stored.text
    assert store.chat(chat.id).title == "half \ufffd pair"
    assert len(store.prompts()) == 5


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
def test_nobody_else_can_read_it(path: Path):
    before = os.umask(0)
    try:
        with ChatStore.open(path) as store:
            store.new_chat()
            names = [path, *path.parent.glob("chats.db-*")]
            assert len(names) == 3
            assert {stat.S_IMODE(name.stat().st_mode) for name in names} == {0o600}
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        path.chmod(0o644)
        path.parent.chmod(0o755)
        ChatStore.open(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755  # it was there: somebody's decision


def test_reading_does_not_wait_for_a_writer(store: ChatStore):
    chat = store.new_chat(title="before")
    with store.writing() as db:
        db.execute("UPDATE chats SET title = 'after'")
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(store.chat(chat.id).title))
        thread.start()
        thread.join(30)
        assert found == ["before"]
    assert store.chat(chat.id).title == "after"


def test_prompts_are_newest_first_without_doubles(store: ChatStore):
    chats = [store.new_chat().id for _ in range(2)]
    for number, text in enumerate(["a", "b", "a", "c", "secret"]):
        store.add_message(chats[number == 4], None, text)
    store.delete_chat(chats[1])
    assert store.prompts() == ["c", "a", "b"]
    assert store.prompts(2) == ["c", "a"]
