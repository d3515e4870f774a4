"""A server's model as an engine of the chat."""

import threading

import pytest

from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.remote import KEY, connect
from app.chat.turn import Turn
from app.models.library import load_engine
from runtimes.errors import ModelError, RequestError
from runtimes.models.registry import read_model
from runtimes.request import FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings
from tests.app import endless
from tests.app.chat.conftest import answer
from tests.app.chat.conftest import until as until_done
from tests.app.serve.conftest import running
from tests.support import until

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def address(gguf_file, onnx_folder):
    with running({"pebble": gguf_file, "other": onnx_folder}, slots=2) as server:
        yield server.address


def test_tokens_and_answers_are_those_of_the_file(address, gguf_file):
    engine = connect(address)
    with load_engine(read_model(gguf_file), RunnerSettings(slots=1)) as own:
        ids = own.encode_chat(QUESTION)
        assert engine.encode_chat(QUESTION) == ids
        assert engine.encode("One, two") == own.encode("One, two")
        wanted = own.submit(Request(ids, SamplingParams(max_tokens=20))).result(60)
    stream = engine.submit(Request(ids, SamplingParams(max_tokens=20)))
    chunks = list(stream)
    found = stream.result(60)
    assert "".join(chunk.text for chunk in chunks) == found.text == wanted.text
    assert found.token_ids[: len(wanted.text)] == wanted.token_ids[: len(found.token_ids)]
    assert found.finish_reason is wanted.finish_reason is FinishReason.STOP
    assert found.usage.prompt_tokens == len(ids)
    assert found.timings.ttft_s > 0
    assert engine.model.context_length == 1024
    assert engine.vocab_size == own.vocab_size
    stats = engine.stats()
    assert stats.slots == 2
    assert stats.completion_tokens > 0
    assert stats.ttft_s.bins
    with pytest.raises(RequestError, match="--chat-template"):
        engine.encode_chat(QUESTION, "{{ messages }}")


def test_another_model_by_its_name(address):
    assert connect(f"{address}/v1#other").model.runtime == "onnx"
    with pytest.raises(ModelError, match="it has pebble, other"):
        connect(f"{address}#nope")


def test_an_answer_can_be_stopped(endless_gguf):
    with running({"pebble": endless_gguf}, slots=1) as server:
        engine = connect(server.address)
        params = SamplingParams(max_tokens=endless.CONTEXT - 1024, frequency_penalty=-2.0)
        ids = engine.encode_chat([{"role": "user", "content": "Tell me a story."}])
        stream = engine.submit(Request(ids, params))
        next(iter(stream))
        stream.cancel()
        found = stream.result(60)
        assert found.finish_reason is FinishReason.CANCELLED
        assert found.text
        until(lambda: engine.stats().running == 0)


@pytest.fixture(scope="module")
def thinkers(pebble_thinks):
    """The model that thinks as a file, and as one of a server."""
    own, there = EngineHost(), EngineHost()
    with running({"thinks": pebble_thinks}, slots=1) as server:
        own.load(str(pebble_thinks))
        there.load(server.address)
        yield own, there
        own.close()
        there.close()


THINKING = [{"thinking": "off"}, {"think_tokens": 4}, {"max_tokens": 3}]


@pytest.mark.parametrize("params", THINKING, ids=str)
def test_thoughts_are_kept_as_those_of_a_file(thinkers, store, params):
    """Apart from the answer, under a bound, where the answer ends within one, and in later turns;
    an answer that was cut goes on within its thought."""
    kept = []
    for host in thinkers:
        conversation = Conversation.new(store)
        given = {"max_tokens": 200, **params}
        first = answer(host, conversation, "What is the capital of France?", **given)
        if first.figures.finish_reason == "length":
            more = SamplingParams(max_tokens=200)
            turn = Turn.start(host, conversation, conversation.path[-2], more, continues=first)
            first = until_done(turn).message
        answer(host, conversation, "What is the capital of Italy?", **given)
        kept.append([(one.text, one.token_ids) for one in conversation.path])
        prompt = conversation.prompt(conversation.path[-2].id)
    assert kept[0] == kept[1]
    if params.get("thinking") == "off":
        assert "reasoning_content" not in prompt[1]
    else:
        assert first.text.startswith("<think>\n")
        assert prompt[1]["reasoning_content"]
    assert prompt[1]["content"] == "The capital of France is Paris."


@pytest.mark.parametrize("by", ["cancel", "close"])
def test_an_answer_can_be_stopped_while_connecting(address, by):
    engine, other = connect(address), connect(address)
    before = other.stats().completions
    ids = engine.encode_chat(QUESTION)
    held, go_on = threading.Event(), threading.Event()
    connecting = engine._server.connect

    def slowly():
        held.set()
        assert go_on.wait(60)
        return connecting()

    engine._server.connect = slowly
    stream = engine.submit(Request(ids, SamplingParams(max_tokens=400)))
    assert held.wait(60)
    (thread,) = (one for one in threading.enumerate() if one.name == "ingot-remote")
    stream.cancel() if by == "cancel" else engine.close()
    found = stream.result(10)  # at once, though the connection is not there yet
    assert (found.finish_reason, found.token_ids, found.error) == (FinishReason.CANCELLED, (), None)
    go_on.set()
    thread.join(60)
    assert other.stats().completions == before


def test_a_cancel_at_any_moment_ends_the_answer(address):
    """From before the thread of the request has begun."""
    engine = connect(address)
    ids = engine.encode_chat(QUESTION)
    for _ in range(20):
        stream = engine.submit(Request(ids, SamplingParams(max_tokens=400)))
        stream.cancel()
        assert stream.result(60).finish_reason is FinishReason.CANCELLED
    assert not engine._running


def test_what_is_no_server_is_said(address):
    with pytest.raises(ModelError, match="does not answer"):
        connect("http://127.0.0.1:9")
    with pytest.raises(ModelError, match="Not Found"):
        connect(f"{address}/nowhere")


def test_the_key_comes_from_the_environment(gguf_file, monkeypatch):
    with running({"pebble": gguf_file}, slots=1, api_key="s3cret") as server:
        monkeypatch.delenv(KEY, raising=False)
        with pytest.raises(ModelError, match="a key is needed"):
            connect(server.address)
        monkeypatch.setenv(KEY, "s3cret")
        assert connect(server.address).slots == 1
