"""Tokens of a prompt before it is sent, and what to do when they are too many."""

import pytest

from app.chat.budget import DraftMessage, TokenBudget, Way, measure, shortage
from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.store.records import Attachment
from app.chat.turn import Turn
from runtimes.errors import RequestError
from runtimes.request import SamplingParams
from tests.app.chat.conftest import answer, until


def _most(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens)


def test_it_counts_what_would_be_asked_once(
    host: EngineHost, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
):
    counted, encode_chat = [], type(host.engine).encode_chat

    def noted(own: object, *arguments: object) -> list[int]:
        counted.append(arguments)
        return encode_chat(own, *arguments)

    monkeypatch.setattr(type(host.engine), "encode_chat", noted)
    assert measure(host, conversation, DraftMessage(), _most(64)).prompt_tokens == 0
    draft = DraftMessage("Name a river.", (Attachment("a.txt", "alpha " * 20),))
    expected = measure(host, conversation, draft, _most(64))
    assert (expected.context, expected.max_tokens) == (512, 64)
    asked = conversation.say(draft.text, draft.attachments)
    for _ in range(2):  # the answer again has its tokens too
        figures = until(Turn.start(host, conversation, asked, _most(2))).message.figures
        assert figures.prompt_tokens == expected.prompt_tokens
    stored = DraftMessage(parent=asked.id)
    assert measure(host, conversation, stored, _most(64)) == expected
    assert len(counted) == 1
    conversation.update(system="Be brief.")
    more = measure(host, conversation, stored, _most(64))
    assert more.prompt_tokens > expected.prompt_tokens
    with pytest.raises(RequestError, match="no model"):
        measure(EngineHost(), conversation, DraftMessage("x"), _most(1))


def test_ways_out_leave_what_they_say(host: EngineHost, conversation: Conversation):
    for number in range(4):
        answer(host, conversation, f"Count to {number}. " * 12, max_tokens=4)
    leaf, path = conversation.leaf, conversation.path
    file = Attachment("a.txt", "Count. " * 8)
    draft = DraftMessage("And now to seven. " * 3, (file,), parent=leaf)

    def now(draft: DraftMessage = draft, talk: Conversation = conversation) -> TokenBudget:
        return measure(host, talk, draft, _most(300))

    before = now()
    assert not before.fits
    short = shortage(host, conversation, draft, _most(300))
    assert short is not None
    assert short.budget == before
    ways = {way.way: way for way in short.ways}
    turns = ways[Way.DROP_TURNS]
    count = len(turns.ids) // 2
    assert turns.says == f"leave the oldest {count} turns out of the prompt"
    assert turns.ids == tuple(m.id for m in path[: 2 * count])
    conversation.drop(turns.ids[:-2])
    assert not now().fits, "no fewer turns would do"
    conversation.drop(turns.ids)
    assert now() == turns.after
    assert turns.after.fits
    assert shortage(host, conversation, draft, _most(300)) is None
    conversation.drop(turns.ids, False)
    assert now() == before
    assert now(DraftMessage(draft.text, parent=leaf)) == ways[Way.DROP_FILES].after
    alone = DraftMessage(draft.text, draft.attachments)
    assert now(alone, Conversation.new(conversation.store)) == ways[Way.NEW_CHAT].after
    shorter = ways[Way.SHORTER].after
    assert (shorter.fits, shorter.max_tokens) == (True, before.room)
