"""The tree of a chat's messages, and what of it the model gets. No engine."""

from dataclasses import replace

import pytest

from app.chat.conversation import Conversation
from app.chat.store.errors import StoreError
from app.chat.store.records import Attachment, Message, State
from app.chat.store.store import ChatStore
from runtimes.errors import RequestError


def reply(conversation: Conversation, parent: Message, text: str) -> Message:
    """An answer that is whole."""
    store = conversation.store
    begun = store.begin_answer(conversation.chat.id, parent.id, model="m")
    message = store.end_answer(replace(begun, text=text, token_ids=(), state=State.DONE))
    conversation._grow(message)
    return message


def test_branches_come_back_as_they_were(conversation: Conversation, store: ChatStore):
    file = Attachment("a.txt", "alpha")
    one = conversation.say("one", [file])
    a = reply(conversation, one, "A")
    two = conversation.say("two")
    b = reply(conversation, two, "B")
    edited = conversation.edit(one.id, "one, but better")
    assert edited.attachments == (file,)
    assert conversation.path == (edited,)
    c = reply(conversation, edited, "C")
    d = reply(conversation, edited, "D")
    assert conversation.siblings(one.id) == (one, edited)
    assert conversation.siblings(d.id) == (c, d)
    assert conversation.switch(d.id, -1) == c
    assert conversation.path == (edited, c)
    assert conversation.switch(edited.id, -1) == one
    assert conversation.path == (one, a, two, b)
    assert conversation.switch(one.id, +9) == edited
    assert conversation.path == (edited, c)  # as that branch was left

    again = Conversation.open(store, conversation.chat.id)
    assert again.path == conversation.path
    assert again.messages == conversation.messages == (one, a, two, b, edited, c, d)
    again.show_message(a.id)
    assert again.path == (one, a, two, b)
    for refused, do in (
        ("your own", lambda: again.edit(a.id, "x")),
        ("nothing to send", lambda: again.say(" \n ")),
    ):
        with pytest.raises(RequestError, match=refused):
            do()


def test_the_prompt_leaves_out_what_the_model_should_not_see(conversation: Conversation):
    conversation.update(system="Be brief.")
    one = conversation.say("read this", [Attachment("a.txt", "alpha\n")])
    reply(conversation, one, "<think>\nhm\n</think>\n\nA")
    two = conversation.say("two")
    reply(conversation, two, "<think>\nstopped while it thought")
    three = conversation.say("three")

    def pairs(until: Message = three) -> list[tuple[str, str]]:
        return [(m["role"], m["content"]) for m in conversation.prompt(until.id)]

    system, first = ("system", "Be brief."), "File a.txt:\n```\nalpha\n```\n\nread this"
    joined = ("user", "two\n\nthree")  # templates want turns to alternate
    whole = [system, ("user", first), ("assistant", "A"), joined]
    assert pairs() == whole
    conversation.drop([one.id, one.id + 1])
    assert pairs() == [system, joined]
    conversation.drop([one.id, one.id + 1], False)
    assert pairs() == whole


def test_a_store_that_fails_changes_nothing(conversation: Conversation, store: ChatStore):
    one = conversation.say("\n  How do I   boil an egg?\nsecond line")
    assert conversation.chat.title == "How do I boil an egg?"
    conversation.rename("  Eggs \n and more ")
    two = conversation.edit(one.id, "", [Attachment("a.txt", "alpha")])
    store.close()
    for change in (
        lambda: conversation.say("three"),
        lambda: conversation.switch(two.id, -1),
        lambda: conversation.drop([one.id]),
        lambda: conversation.rename("x"),
    ):
        with pytest.raises(StoreError):
            change()
    assert conversation.path == (two,)
    assert conversation.messages == (one, two)
    assert conversation.chat.title == "Eggs and more"
