"""Tokens of a prompt before it is sent, and what to do when they are too many."""

from __future__ import annotations

import pytest

from app.chat.budget import DraftMessage, TokenBudget, Way, measure, ways_out
from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.store.records import Attachment, State
from app.chat.turn import Turn
from app.prompts import PromptTooLongError
from runtimes.errors import RequestError
from runtimes.request import SamplingParams
from tests.app.chat.conftest import answer, until


def _most(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens)


def test_what_fits() -> None:
    assert TokenBudget(100, 412, 512).fits
    assert not TokenBudget(100, 413, 512).fits
    assert not TokenBudget(100, 1024, 512).tight  # the answer may be cut, and has room
    assert TokenBudget(400, 1024, 512).tight
    assert not TokenBudget(400, 100, 512).tight
    assert TokenBudget(400, 1024, 512).room == 112
    assert TokenBudget(512, 1, 512).over
    assert TokenBudget(600, 1, 512).room == 0


def test_it_counts_what_would_be_asked(host: EngineHost, conversation: Conversation) -> None:
    nothing = measure(host, conversation, DraftMessage(), _most(64))
    assert nothing.prompt_tokens == 0
    draft = DraftMessage("Who are you?", (Attachment("a.txt", "alpha " * 20),))
    expected = measure(host, conversation, draft, _most(64))
    assert measure(host, conversation, DraftMessage("Who are you?"), _most(64)).prompt_tokens < 40
    asked = conversation.say(draft.text, draft.attachments)
    turn = Turn.start(host, conversation, asked, _most(8))
    figures = until(turn).message.figures
    assert figures is not None
    assert figures.prompt_tokens == expected.prompt_tokens
    assert (expected.context, expected.max_tokens) == (512, 64)
    stored = measure(host, conversation, DraftMessage(parent=asked.id), _most(64))
    assert stored.prompt_tokens == expected.prompt_tokens
    conversation.update(system="Be brief.")
    assert measure(host, conversation, DraftMessage(parent=asked.id), _most(64)).prompt_tokens > (
        stored.prompt_tokens
    )


def test_nothing_loaded(conversation: Conversation) -> None:
    with pytest.raises(RequestError, match="no model"):
        measure(EngineHost(), conversation, DraftMessage("x"), _most(1))


def test_ways_out_leave_what_they_say(host: EngineHost, conversation: Conversation) -> None:
    for number in range(4):
        answer(host, conversation, f"Count to {number}. " * 12, max_tokens=4)
    leaf = conversation.leaf
    file = Attachment("a.txt", "Count. " * 8)
    draft = DraftMessage("And now to seven. " * 3, (file,), parent=leaf)
    now = measure(host, conversation, draft, _most(300))
    assert not now.fits
    ways = {way.way: way for way in ways_out(host, conversation, draft, _most(300))}
    turns = ways[Way.DROP_TURNS]
    assert turns.after.fits
    count = len(turns.ids) // 2
    assert turns.says == f"leave the oldest {count} turns out of the prompt"
    # No fewer turns would do.
    path = conversation.path
    assert turns.ids == tuple(m.id for m in path[: 2 * count])
    conversation.drop([m.id for m in path[: 2 * count - 2]])
    assert not measure(host, conversation, draft, _most(300)).fits
    conversation.drop(turns.ids)
    assert tuple(m.id for m in conversation.path if m.dropped) == turns.ids
    assert measure(host, conversation, draft, _most(300)) == turns.after
    again = {way.way: way for way in ways_out(host, conversation, draft, _most(300))}
    assert turns.after.fits
    assert Way.DROP_TURNS not in again or again[Way.DROP_TURNS].after.room > turns.after.room
    conversation.drop(turns.ids, False)
    assert measure(host, conversation, draft, _most(300)) == now

    without = DraftMessage(draft.text, parent=leaf)
    assert measure(host, conversation, without, _most(300)) == ways[Way.DROP_FILES].after
    new = Conversation.new(conversation.store)
    alone = DraftMessage(draft.text, draft.attachments)
    assert measure(host, new, alone, _most(300)) == ways[Way.NEW_CHAT].after
    if now.room >= 16:
        assert ways[Way.SHORTER].after.fits
        assert ways[Way.SHORTER].after.max_tokens == now.room


def test_a_question_that_was_refused_finds_room(
    host: EngineHost, conversation: Conversation
) -> None:
    answer(host, conversation, "Count. " * 100, max_tokens=4)
    asked = conversation.say("Count. " * 100)
    params = _most(100)
    with pytest.raises(PromptTooLongError):
        Turn.start(host, conversation, asked, params)
    ways = ways_out(host, conversation, DraftMessage(parent=asked.id), _most(100))
    assert [way.way for way in ways] == [Way.DROP_TURNS, Way.NEW_CHAT]
    conversation.drop(ways[0].ids)
    message = until(Turn.start(host, conversation, asked, params)).message
    assert message.state in (State.DONE, State.CUT)
    assert message.figures is not None
    assert message.figures.prompt_tokens == ways[0].after.prompt_tokens


def test_a_stored_question_may_be_asked_without_its_files(
    host: EngineHost, conversation: Conversation
) -> None:
    asked = conversation.say("Read this.", [Attachment("a.txt", "Count. " * 600)])
    (way,) = ways_out(host, conversation, DraftMessage(parent=asked.id), _most(100))
    assert way.way is Way.DROP_FILES
    edited = conversation.edit(asked.id, asked.text, ())
    assert measure(host, conversation, DraftMessage(parent=edited.id), _most(100)) == way.after


def test_what_is_too_long_by_itself_has_no_way_out(
    host: EngineHost, conversation: Conversation
) -> None:
    huge = DraftMessage("Count. " * 600)
    assert ways_out(host, conversation, huge, _most(100)) == []
    files = DraftMessage("Read this.", (Attachment("a.txt", "Count. " * 600),))
    assert [way.way for way in ways_out(host, conversation, files, _most(100))] == [Way.DROP_FILES]


def test_what_was_counted_is_not_tokenized_again(
    host: EngineHost, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = host.engine
    assert engine is not None
    asked, encode_chat = [], type(engine).encode_chat

    def noted(own: object, *arguments: object) -> list[int]:
        asked.append(arguments)
        return encode_chat(own, *arguments)

    monkeypatch.setattr(type(engine), "encode_chat", noted)
    measure(host, conversation, DraftMessage("Name a river."), _most(64))
    said = conversation.say("Name a river.")
    for _ in range(2):  # the answer again has its tokens too
        until(Turn.start(host, conversation, said, _most(2)))
    assert len(asked) == 1
