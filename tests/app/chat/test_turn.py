"""One answer: streamed, stopped, cut, continued, lost, and what is stored of it."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.chat.conversation import Conversation
from app.chat.host import EngineHost, HostState
from app.chat.store.records import Role, State
from app.chat.store.store import ChatStore
from app.chat.turn import Turn
from app.options import ModelOptions
from app.prompts import PromptTooLongError
from runtimes.errors import RequestError
from runtimes.request import Chunk, Request, SamplingParams
from runtimes.stream import Stream
from tests import support
from tests.app import endless
from tests.app.chat.conftest import ENDLESS, LONG, answer, until


def test_an_answer_streams_and_is_stored(
    host: EngineHost, conversation: Conversation, store: ChatStore
) -> None:
    asked = conversation.say("What is the capital of France?")
    turn = Turn.start(host, conversation, asked, SamplingParams(max_tokens=64))
    assert turn.message.state is State.STREAMING
    seen = []
    while True:
        progress = turn.poll()
        seen.append(progress)
        if progress.done:
            break
        time.sleep(0.002)
    message = progress.message
    assert message == store.message(message.id) == conversation.path[-1]
    assert all(b.message.text.startswith(a.message.text) for a, b in itertools.pairwise(seen))
    assert "Paris" in message.text
    assert (message.role, message.state, message.error) == (Role.ASSISTANT, State.DONE, None)
    assert (message.model, message.runtime) == (host.label, host.choice.file.runtime)
    figures = message.figures
    assert figures is not None
    assert figures.finish_reason == "stop"
    assert figures.completion_tokens == len(message.token_ids) == progress.tokens
    assert turn.prompt_tokens == figures.prompt_tokens
    assert progress.figures.used == figures.prompt_tokens + figures.completion_tokens
    assert (progress.figures.decode_tps, progress.figures.ttft_s) == (
        figures.decode_tps,
        figures.ttft_s,
    )
    assert progress.figures.context == 512
    assert all(b.tokens >= a.tokens for a, b in itertools.pairwise(seen))
    assert turn.poll() == progress
    assert conversation.chat.title == "What is the capital of France?"


def test_a_second_turn_computes_only_what_is_new(
    host: EngineHost, conversation: Conversation
) -> None:
    first = answer(host, conversation, "Who are you? " * 10)
    second = answer(host, conversation, "What is 2 + 2?")
    assert first.figures is not None
    assert second.figures is not None
    assert second.figures.cached_tokens >= first.figures.prompt_tokens
    assert [m.role for m in conversation.path] == [Role.USER, Role.ASSISTANT] * 2


def test_stopped_in_the_middle_keeps_what_came(
    roomy: EngineHost, conversation: Conversation, store: ChatStore
) -> None:
    turn = Turn.start(roomy, conversation, conversation.say(LONG), ENDLESS)
    shown = until(turn, lambda p: p.tokens >= 5)
    turn.stop()
    message = until(turn).message
    assert message.state is State.STOPPED
    assert message.text.startswith(shown.message.text)
    assert message == store.message(message.id)
    assert message.figures is not None
    assert 5 <= message.figures.completion_tokens == len(message.token_ids) < ENDLESS.max_tokens
    turn.stop()  # does nothing any more


@pytest.mark.parametrize("tokens", [1, 7])
def test_continued_is_what_an_undisturbed_answer_is(
    host: EngineHost, conversation: Conversation, store: ChatStore, tokens: int
) -> None:
    asked = conversation.say(LONG)
    whole = until(
        Turn.start(host, conversation, asked, SamplingParams(max_tokens=48, ignore_eos=True))
    ).message
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    cut = until(Turn.start(host, conversation, asked, params)).message
    assert cut.state is State.CUT
    assert len(cut.token_ids) == tokens
    rest = SamplingParams(max_tokens=48 - tokens, ignore_eos=True)
    turn = Turn.start(host, conversation, asked, rest, continues=cut)
    assert turn.message.id == cut.id
    assert turn.message.state is State.STREAMING
    assert turn.poll().message.text.startswith(cut.text)
    progress = until(turn)
    assert progress.message.token_ids == whole.token_ids
    assert progress.message.text == whole.text
    assert progress.message == store.message(cut.id)
    assert progress.figures.used == whole.figures.prompt_tokens + 48
    assert progress.message.figures.completion_tokens == 48
    assert progress.message.figures.ttft_s == cut.figures.ttft_s
    assert progress.message.figures.total_s > cut.figures.total_s


def test_an_answer_that_is_whole_is_not_continued(
    host: EngineHost, conversation: Conversation
) -> None:
    message = answer(host, conversation, "What is 2 + 2?")
    with pytest.raises(RequestError, match="whole"):
        Turn.start(host, conversation, conversation.path[0], SamplingParams(), continues=message)
    assert conversation.store.message(message.id) == message


def test_a_full_context_cuts_the_answer(host: EngineHost, conversation: Conversation) -> None:
    asked = conversation.say("Count. " * 150)
    turn = Turn.start(host, conversation, asked, ENDLESS)
    progress = until(turn)
    assert progress.message.state is State.CUT
    assert progress.message.figures.finish_reason == "context"
    assert progress.figures.used == 512
    with pytest.raises(PromptTooLongError):
        Turn.start(host, conversation, asked, ENDLESS, continues=progress.message)
    assert conversation.store.message(progress.message.id).state is State.CUT


def test_a_prompt_without_room_stores_no_answer(
    host: EngineHost, conversation: Conversation
) -> None:
    asked = conversation.say("Count. " * 600)
    with pytest.raises(PromptTooLongError, match="512"):
        Turn.start(host, conversation, asked, SamplingParams())
    assert conversation.path == (asked,)
    assert conversation.store.messages(conversation.chat.id) == [asked]


def test_made_anew_and_edited_are_branches(host: EngineHost, conversation: Conversation) -> None:
    one = answer(host, conversation, "What is 2 + 2?")
    asked = conversation.path[0]
    again = until(
        Turn.start(host, conversation, asked, SamplingParams(temperature=1.0, max_tokens=8))
    ).message
    assert conversation.siblings(again.id) == (one, again)
    edited = conversation.edit(asked.id, "What is the capital of Spain?")
    spain = until(Turn.start(host, conversation, edited, SamplingParams(max_tokens=32))).message
    assert "Madrid" in spain.text
    assert conversation.path == (edited, spain)
    assert conversation.switch(edited.id, -1) == asked
    assert conversation.path == (asked, again)


def crash(host: EngineHost, number: signal.Signals) -> int:
    """Kill the engine's process; its number."""
    assert host.engine is not None
    assert host.engine.pid is not None
    pid = host.engine.pid
    os.kill(pid, number)
    return pid


def test_a_crash_after_something_was_shown_keeps_it(
    roomy: EngineHost, conversation: Conversation, store: ChatStore
) -> None:
    turn = Turn.start(roomy, conversation, conversation.say(LONG), ENDLESS)
    shown = until(turn, lambda p: p.tokens >= 5)
    crash(roomy, signal.SIGSEGV)
    message = until(turn).message
    assert message.state is State.FAILED
    assert "SIGSEGV" in (message.error or "")
    assert message.text.startswith(shown.message.text)
    assert message == store.message(message.id)
    assert len(message.token_ids) == message.figures.completion_tokens
    # The engine comes back by itself, and the answer can go on.
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    more = Turn.start(roomy, conversation, conversation.path[0], params, continues=message)
    ended = until(more).message
    assert ended.state is State.CUT
    assert ended.error is None
    assert ended.text.startswith(message.text)
    assert len(ended.token_ids) == len(message.token_ids) + 4


def test_a_crash_before_anything_was_shown_is_not_noticed(
    host: EngineHost, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = conversation.say("What is the capital of France?")
    assert host.engine is not None
    submit = host.engine.submit

    def stopped(request: Request) -> Stream:
        assert host.engine is not None
        psutil.Process(host.engine.pid).suspend()  # it takes no step before it is killed
        return submit(request)

    with monkeypatch.context() as patch:
        patch.setattr(host.engine, "submit", stopped)
        turn = Turn.start(host, conversation, asked, SamplingParams(max_tokens=64))
        killed = crash(host, signal.SIGKILL)
    progress = until(turn)
    assert host.engine.pid != killed
    assert progress.message.state is State.DONE
    assert "Paris" in progress.message.text
    assert host.state is HostState.READY


def test_while_it_streams_it_is_saved(
    roomy: EngineHost, conversation: Conversation, store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.chat.turn.JOURNAL_S", 0.0)
    turn = Turn.start(roomy, conversation, conversation.say(LONG), ENDLESS)
    until(turn, lambda p: p.tokens >= 5)
    saved = support.until(
        lambda: turn.poll() and store.message(turn.message.id), lambda message: message.text
    )
    assert saved.state is State.STREAMING
    assert turn.poll().message.text.startswith(saved.text)
    assert saved.figures is not None
    assert 0 < len(saved.token_ids) <= saved.figures.completion_tokens
    assert saved.figures.finish_reason == "unfinished"
    # What is lost with its process can go on: exactly the tokens that made the text are there.
    assert turn.close().token_ids[: len(saved.token_ids)] == saved.token_ids
    assert store.message(saved.id).state is State.STOPPED


def test_what_cannot_be_saved_is_said_once(
    host: EngineHost, conversation: Conversation, store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.chat.turn.JOURNAL_S", 0.0)
    put, came, said = Stream.put, itertools.count(1), threading.Event()

    def held(stream: Stream, chunk: Chunk) -> None:
        assert next(came) <= 5 or said.wait(60)
        put(stream, chunk)

    monkeypatch.setattr(Stream, "put", held)
    params = SamplingParams(max_tokens=300, ignore_eos=True)
    turn = Turn.start(host, conversation, conversation.say(LONG), params)
    store.close()
    warnings = []
    while not (progress := turn.poll()).done:
        warnings.append(progress.warning)
        if progress.warning:
            said.set()
        time.sleep(0.002)
    assert progress.warning is None  # it was said before the end
    assert [w is not None for w in warnings].count(True) == 1
    assert "could not be saved" in next(filter(None, warnings))
    assert progress.message.state is State.CUT
    assert len(progress.message.token_ids) == 300
    assert conversation.path[-1] == progress.message


def test_leaving_waits_for_no_engine(
    roomy: EngineHost, conversation: Conversation, store: ChatStore
) -> None:
    turn = Turn.start(roomy, conversation, conversation.say(LONG), ENDLESS)
    shown = until(turn, lambda p: p.tokens >= 5)
    assert roomy.engine is not None
    process = psutil.Process(roomy.engine.pid)
    process.suspend()
    try:
        message = turn.close(0.3)  # the engine never answers
    finally:
        process.resume()
    assert message == store.message(message.id)
    assert message.state is State.STOPPED
    assert message.text.startswith(shown.message.text)
    assert turn.poll().done
    assert turn.close() == message


def test_a_model_that_is_closed_ends_the_answer(
    endless_built: Path, conversation: Conversation, home: None
) -> None:
    own = EngineHost()
    with pytest.raises(RequestError, match="no model"):
        Turn.start(own, conversation, conversation.say(LONG), ENDLESS)
    own.load(str(endless_built), ModelOptions(recipe="q8_0", context=endless.CONTEXT, threads=1))
    turn = Turn.start(own, conversation, conversation.path[-1], ENDLESS)
    until(turn, lambda p: p.tokens >= 2)
    own.close()
    message = until(turn).message
    assert message.state is State.STOPPED
    assert "closed" in (message.error or "")
    assert message.text


def test_half_a_character_is_given_up_and_comes_whole_later(
    host: EngineHost, conversation: Conversation
) -> None:
    asked = conversation.say(LONG)
    cut = until(
        Turn.start(host, conversation, asked, SamplingParams(max_tokens=5, ignore_eos=True))
    ).message
    assert host.engine is not None
    first, *_ = host.engine.encode("🦊")[-4:]  # of its four bytes
    params = SamplingParams(max_tokens=1, logit_bias=((first, 1000.0),))
    turn = Turn.start(host, conversation, asked, params, continues=cut)
    message = until(turn).message
    assert (message.text, message.token_ids) == (cut.text, cut.token_ids)
    assert message.state is State.CUT
    assert message.figures.completion_tokens == 6


def test_another_model_goes_on_from_the_text(
    host: EngineHost, conversation: Conversation, store: ChatStore
) -> None:
    """Its token ids mean something else."""
    asked = conversation.say(LONG)
    begun = store.begin_answer(conversation.chat.id, asked.id, model="other · q4_0")
    text = "Once upon a time there was"
    cut = store.end_answer(replace(begun, text=text, token_ids=(1, 2, 3), state=State.CUT))
    conversation = Conversation.open(store, conversation.chat.id)
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    message = until(Turn.start(host, conversation, asked, params, continues=cut)).message
    assert message.text.startswith(text)
    assert len(message.text) > len(text)
    assert message.token_ids == ()  # of two vocabularies: none that one could go on from
    assert message == store.message(cut.id)
    more = until(Turn.start(host, conversation, asked, params, continues=message)).message
    assert more.text.startswith(message.text)
