"""One answer: streamed, stopped, cut, continued, lost, and what is stored of it."""

import itertools
import os
import signal
import threading
from dataclasses import replace

import psutil
import pytest

from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.store.records import Role, State
from app.chat.store.store import ChatStore
from app.chat.turn import JOURNAL_S, Turn
from runtimes.errors import RequestError
from runtimes.request import Chunk, Request, SamplingParams
from runtimes.stream import Stream
from tests import support
from tests.app.chat.conftest import ENDLESS, LONG, answer, until


def _most(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, ignore_eos=True)


def test_an_answer_streams_and_is_stored(
    either: EngineHost, conversation: Conversation, store: ChatStore
):
    asked = conversation.say("What is the capital of France?")
    turn = Turn.start(either, conversation, asked, SamplingParams(max_tokens=64))
    assert turn.message.state is State.STREAMING
    seen = [turn.poll()]
    progress = until(turn, lambda now: seen.append(now) or now.done)
    message, figures = progress.message, progress.message.figures
    assert message == store.message(message.id) == conversation.path[-1]
    assert turn.poll() == progress
    for before, after in itertools.pairwise(seen):
        assert after.message.text.startswith(before.message.text)
        assert after.tokens >= before.tokens
    assert "Paris" in message.text
    assert (message.role, message.state, message.error) == (Role.ASSISTANT, State.DONE, None)
    assert (message.model, message.runtime) == (either.label, either.choice.file.runtime)
    assert figures.finish_reason == "stop"
    assert figures.completion_tokens == len(message.token_ids) == progress.tokens
    assert turn.prompt_tokens == figures.prompt_tokens
    shown = progress.figures
    assert shown.used == figures.prompt_tokens + figures.completion_tokens
    assert (shown.decode_tps, shown.ttft_s) == (figures.decode_tps, figures.ttft_s)
    assert shown.context == 512
    with pytest.raises(RequestError, match="whole"):
        Turn.start(either, conversation, asked, SamplingParams(), continues=message)
    again = until(Turn.start(either, conversation, asked, _most(2))).message
    assert conversation.siblings(again.id) == (message, again)
    second = answer(either, conversation, "What is 2 + 2?")
    assert second.figures.cached_tokens >= figures.prompt_tokens, "only what is new is computed"


def test_a_stopped_answer_keeps_what_came_and_was_saved_before(
    roomy: EngineHost, conversation: Conversation, store: ChatStore, monkeypatch: pytest.MonkeyPatch
):
    assert JOURNAL_S <= 1, "what one has read for a second is on the disk"
    monkeypatch.setattr("app.chat.turn.JOURNAL_S", 0.0)
    turn = Turn.start(roomy, conversation, conversation.say(LONG), ENDLESS)
    saved = support.until(
        lambda: turn.poll() and store.message(turn.message.id), lambda message: message.text
    )
    assert saved.state is State.STREAMING
    assert saved.figures.finish_reason == "unfinished"
    assert 0 < len(saved.token_ids) <= saved.figures.completion_tokens
    turn.stop()
    message = until(turn).message
    assert message == store.message(message.id)
    assert message.state is State.STOPPED
    assert message.text.startswith(saved.text)
    assert message.token_ids[: len(saved.token_ids)] == saved.token_ids
    assert message.figures.completion_tokens == len(message.token_ids) < ENDLESS.max_tokens
    turn.stop()  # does nothing any more


def test_continued_is_what_an_undisturbed_answer_is(
    host: EngineHost, conversation: Conversation, store: ChatStore
):
    asked = conversation.say(LONG)
    whole = until(Turn.start(host, conversation, asked, _most(48))).message
    cut = until(Turn.start(host, conversation, asked, _most(7))).message
    assert (cut.state, len(cut.token_ids)) == (State.CUT, 7)
    turn = Turn.start(host, conversation, asked, _most(41), continues=cut)
    assert (turn.message.id, turn.message.state) == (cut.id, State.STREAMING)
    assert turn.poll().message.text.startswith(cut.text)
    progress = until(turn)
    message, figures = progress.message, progress.message.figures
    assert (message.text, message.token_ids) == (whole.text, whole.token_ids)
    assert message == store.message(cut.id)
    assert progress.figures.used == whole.figures.prompt_tokens + 48
    assert (figures.completion_tokens, figures.ttft_s) == (48, cut.figures.ttft_s)
    assert figures.total_s > cut.figures.total_s


def test_a_crash_after_something_was_shown_keeps_it(
    roomy: EngineHost, conversation: Conversation, store: ChatStore
):
    turn = Turn.start(roomy, conversation, conversation.say(LONG), ENDLESS)
    shown = until(turn, lambda p: p.tokens >= 5)
    os.kill(roomy.engine.pid, signal.SIGSEGV)
    message = until(turn).message
    assert message == store.message(message.id)
    assert message.state is State.FAILED
    assert "SIGSEGV" in message.error
    assert message.text.startswith(shown.message.text)
    assert len(message.token_ids) == message.figures.completion_tokens
    # The engine comes back by itself, and the answer can go on.
    more = Turn.start(roomy, conversation, conversation.path[0], _most(4), continues=message)
    ended = until(more).message
    assert (ended.state, ended.error) == (State.CUT, None)
    assert ended.text.startswith(message.text)
    assert len(ended.token_ids) == len(message.token_ids) + 4


def test_a_crash_before_anything_was_shown_is_not_noticed(
    host: EngineHost, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
):
    asked = conversation.say("What is the capital of France?")
    submit, killed = host.engine.submit, host.engine.pid

    def stopped(request: Request) -> Stream:
        psutil.Process(host.engine.pid).suspend()  # it takes no step before it is killed
        return submit(request)

    with monkeypatch.context() as patch:
        patch.setattr(host.engine, "submit", stopped)
        turn = Turn.start(host, conversation, asked, SamplingParams(max_tokens=64))
        os.kill(killed, signal.SIGKILL)
    message = until(turn).message
    assert host.engine.pid != killed
    assert message.state is State.DONE
    assert "Paris" in message.text


def test_what_cannot_be_saved_is_said_once(
    host: EngineHost, conversation: Conversation, store: ChatStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.chat.turn.JOURNAL_S", 0.0)
    put, came, said = Stream.put, itertools.count(1), threading.Event()

    def held(stream: Stream, chunk: Chunk) -> None:
        assert next(came) <= 5 or said.wait(60)
        put(stream, chunk)

    monkeypatch.setattr(Stream, "put", held)
    turn = Turn.start(host, conversation, conversation.say(LONG), _most(300))
    store.close()
    progress = until(turn, lambda now: now.warning)
    assert "could not be saved" in progress.warning
    said.set()
    progress = until(turn, lambda now: now.done or now.warning)
    assert progress.warning is None
    assert progress.message.state is State.CUT
    assert len(progress.message.token_ids) == 300
    assert conversation.path[-1] == progress.message


def test_leaving_waits_for_no_engine(
    roomy: EngineHost, conversation: Conversation, store: ChatStore
):
    turn = Turn.start(roomy, conversation, conversation.say(LONG), ENDLESS)
    shown = until(turn, lambda p: p.tokens >= 5)
    process = psutil.Process(roomy.engine.pid)
    process.suspend()
    try:
        message = turn.close(0.3)  # the engine never answers
    finally:
        process.resume()
    assert message == store.message(message.id) == turn.close()
    assert message.state is State.STOPPED
    assert message.text.startswith(shown.message.text)
    assert turn.poll().done


def test_half_a_character_is_given_up_and_comes_whole_later(
    host: EngineHost, conversation: Conversation
):
    asked = conversation.say(LONG)
    cut = until(Turn.start(host, conversation, asked, _most(5))).message
    first, *_ = host.engine.encode("🦊")[-4:]  # of its four bytes
    params = SamplingParams(max_tokens=1, logit_bias=((first, 1000.0),))
    message = until(Turn.start(host, conversation, asked, params, continues=cut)).message
    assert (message.text, message.token_ids) == (cut.text, cut.token_ids)
    assert (message.state, message.figures.completion_tokens) == (State.CUT, 6)


def test_another_model_goes_on_from_the_text(
    host: EngineHost, conversation: Conversation, store: ChatStore
):
    """Its token ids mean something else."""
    asked = conversation.say(LONG)
    begun = store.begin_answer(conversation.chat.id, asked.id, model="other · q4_0")
    text = "Once upon a time there was"
    cut = store.end_answer(replace(begun, text=text, token_ids=(1, 2, 3), state=State.CUT))
    conversation = Conversation.open(store, conversation.chat.id)
    message = until(Turn.start(host, conversation, asked, _most(5), continues=cut)).message
    assert message == store.message(cut.id)
    assert message.text.startswith(text)
    assert message.text != text
    assert message.token_ids == ()  # of two vocabularies: none that one could go on from
    more = until(Turn.start(host, conversation, asked, _most(5), continues=message)).message
    assert more.text.startswith(message.text)
