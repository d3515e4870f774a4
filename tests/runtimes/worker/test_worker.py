"""The engine in a process of its own, on real files, while nothing goes wrong."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from runtimes.chat import encode_chat, encode_text
from runtimes.engine.engine import Engine
from runtimes.errors import ModelError, OutOfMemoryError, RequestError
from runtimes.request import FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.worker.child import _Server
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.process import WorkerProcess
from runtimes.worker.wire import Call, Cancel, Done, PipeSender, Reply, receive

QUESTIONS = [
    "What is the capital of France?",
    "What is 23 + 45?",
    "Tell me a story about a fox.",
    "Count from 3 to 9.",
]
SETTINGS = RunnerSettings(slots=4, context=256, threads=1)


@pytest.fixture(scope="module")
def worker(gguf: Path, state: None) -> Iterator[WorkerEngine]:
    with WorkerEngine.load(gguf, SETTINGS) as engine:
        yield engine


def prompts(engine: WorkerEngine | Engine) -> list[list[int]]:
    return [engine.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]


def test_it_answers_as_the_engine_in_this_process_does(pebble_file):
    params = SamplingParams(max_tokens=24, logprobs=True)
    settings = replace(SETTINGS, reproducible=True)  # else it counts which rows come together
    with Engine.load(pebble_file, settings) as engine:
        here = engine.generate(prompts(engine), params)
        described = (engine.model, engine.context, engine.slots, engine.vocab_size)
        plain = engine.encode("Hello")
    with WorkerEngine.load(pebble_file, settings) as worker:
        assert (worker.model, worker.context, worker.slots, worker.vocab_size) == described
        assert worker.encode("Hello") == plain
        streams = [worker.submit(Request(prompt, params)) for prompt in prompts(worker)]
        pieces = [list(stream) for stream in streams]
        there = [stream.result(1) for stream in streams]
        stats = worker.stats()
    assert [d.token_ids for d in there] == [d.token_ids for d in here]
    assert [d.text for d in there] == [d.text for d in here]
    assert ["".join(chunk.text for chunk in chunks) for chunks in pieces] == [d.text for d in there]
    assert [d.logprobs for d in there] == [d.logprobs for d in here]
    assert stats.completion_tokens == sum(len(d.token_ids) for d in there)
    assert (stats.queued, stats.running) == (0, 0)


def test_errors_keep_their_class_and_their_words(worker, gguf, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf.read_bytes()[:-1000])
    for path, settings in (
        (broken, SETTINGS),
        (tmp_path / "absent.gguf", SETTINGS),
        (gguf, RunnerSettings(slots=10**8)),
    ):
        with pytest.raises((ModelError, OutOfMemoryError)) as here:
            Engine.load(path, settings)
        with pytest.raises(type(here.value)) as there:
            WorkerEngine.load(path, settings)
        # What is free changes from one moment to the next.
        assert str(there.value)[:60] == str(here.value)[:60]
        assert type(there.value) is type(here.value)
    with pytest.raises(RequestError, match="tokens; the context holds 256"):
        worker.submit(Request([5] * 256))
    with pytest.raises(RequestError, match="outside"):
        worker.submit(Request([10**6]))
    with pytest.raises(RequestError, match="refuses this conversation"):
        worker.encode_chat([{"no role": "user"}])
    with pytest.raises(RequestError):
        worker.save_session([5, 6, 7], tmp_path / "session")


def test_cancel(worker):
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    for _ in range(20):  # on a busy machine the answer may be whole before the word has come
        stream = worker.submit(Request(prompts(worker)[2], params))
        first = next(iter(stream))
        stream.cancel()
        done = stream.result(120)
        assert done.text.startswith(first.text)
        if done.finish_reason is FinishReason.CANCELLED:
            break
    assert done.finish_reason is FinishReason.CANCELLED
    worker.cancel("nobody")


def test_what_is_no_chunk_ends_the_rest_behind_one():
    source, target = os.pipe()
    sender, messages = PipeSender(target, "test-send", rest_s=600), receive(source)
    chunk, other = (1, "a", (5,), 0, False), Cancel("one")
    sender.put(chunk)
    assert next(messages) == [chunk]
    sender.put(chunk)
    sender.put(other)
    assert next(messages) == [chunk, other]
    sender.close(10)
    assert not any(messages)


def test_an_answer_may_come_before_the_question_is_noted(worker, monkeypatch):
    came, send, received = threading.Event(), worker._dispatch, worker._take

    def note(item: object) -> None:
        received(item)
        if isinstance(item, (Done, Reply)):
            came.set()

    def wait_for_the_answer(item: object) -> None:
        came.clear()
        send(item)
        assert came.wait(60)

    prompt = prompts(worker)[0]
    monkeypatch.setattr(worker, "_take", note)
    monkeypatch.setattr(worker, "_dispatch", wait_for_the_answer)
    assert worker.submit(Request(prompt, SamplingParams(max_tokens=2))).result(60).error is None
    reply: list[list[int]] = []
    asking = threading.Thread(target=lambda: reply.append(worker.encode("x")), daemon=True)
    asking.start()
    asking.join(60)
    assert reply == [worker.encode("x")]


def test_a_short_text_does_not_wait_for_a_long_one(gguf, state, monkeypatch):
    replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    with Engine.load(gguf, SETTINGS) as engine:
        encode, others_done = engine.tokenizer.encode, threading.Event()

        def slowly(text: str, **options: bool) -> list[int]:
            assert len(text) < 1000 or others_done.wait(60)
            return encode(text, **options)

        monkeypatch.setattr(engine.tokenizer, "encode", slowly)
        server = _Server(engine, replies.put)
        long = [{"role": "user", "content": "a" * 100_000}]
        own = engine.model.chat_template
        server.take(Call(1, "encoded", (encode_chat, own, long)))
        server.take(Call(2, "encoded", (encode_text, "Hello")))
        assert replies.get(timeout=60) == Reply(2, engine.encode("Hello"))
        others_done.set()
        assert replies.get(timeout=60) == Reply(1, engine.encode_chat(long))


def test_close_cancels_or_drains(gguf):
    for drain, expected in ((False, FinishReason.CANCELLED), (True, FinishReason.LENGTH)):
        worker = WorkerEngine.load(gguf, SETTINGS)
        process = psutil.Process(worker.pid)
        params = SamplingParams(max_tokens=120, ignore_eos=True)
        asked = prompts(worker) * (2 if drain else 20)
        streams = [worker.submit(Request(prompt, params)) for prompt in asked]
        worker.close(drain=drain)
        reasons = [stream.result(1).finish_reason for stream in streams]
        assert reasons[-1] is expected  # the first may be whole, if this process was held up
        assert set(reasons) <= {expected, FinishReason.LENGTH}
        assert not process.is_running()  # not even as a zombie
        with pytest.raises(RequestError, match="closed"):
            worker.submit(Request([5]))
        with pytest.raises(RequestError, match="closed"):
            worker.encode("x")
        if drain:  # else it may have ended before its first step
            assert worker.stats().completion_tokens == 8 * 120
        worker.close()


def test_a_callback_may_close_but_must_not_wait(gguf):
    worker = WorkerEngine.load(gguf, SETTINGS)
    prompt = prompts(worker)[0]
    problems: list[BaseException] = []

    def callback(done: object) -> None:
        try:
            worker.stats()
            worker.encode("x")
        except RuntimeError as error:
            problems.append(error)
        worker.close()

    stream = worker.submit(Request(prompt, SamplingParams(max_tokens=4)))
    stream.add_done_callback(callback)
    stream.result(120)
    worker.close()
    assert "done callback" in str(problems[0])


def test_an_idle_worker_sleeps(worker):
    worker.generate(prompts(worker), SamplingParams(max_tokens=4))
    child = psutil.Process(worker.pid)

    def works() -> bool:
        before = sum(child.cpu_times()[:2]), time.process_time()
        time.sleep(0.2)
        spent = sum(child.cpu_times()[:2]) - before[0], time.process_time() - before[1]
        return max(spent) >= 0.04

    # What the tests before have left to do may take a while; to wait for work would never end.
    assert not all(works() for _ in range(20))


def test_the_parent_decides_about_signals(worker):
    """A terminal's Ctrl-C goes to both processes."""
    stream = worker.submit(Request(prompts(worker)[2], SamplingParams(max_tokens=60)))
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(worker.pid, number)
    assert stream.result(120).error is None


def test_loading_ends_when_another_thread_closes_the_engine(gguf):
    begun: list[WorkerEngine] = []

    def stop(engine: WorkerEngine) -> None:
        begun.append(engine)
        start = engine._new_process

        def closed_meanwhile() -> WorkerProcess:
            process = start()
            os.kill(process.pid, signal.SIGSTOP)  # it gets no further
            threading.Thread(target=engine.close).start()
            return process

        engine._new_process = closed_meanwhile

    with pytest.raises(RequestError, match="closed"):
        WorkerEngine.load(gguf, SETTINGS, begun=stop)
    assert begun[0].pid is None


def test_what_cannot_cross_the_pipe_ends_one_request(gguf):
    """It once ended the thread that sends, and with it the process and everybody's requests."""
    nested: dict[str, object] = {}
    for _ in range(sys.getrecursionlimit() * 4):
        nested = {"a": nested}
    with WorkerEngine.load(gguf, RunnerSettings(slots=2, context=256)) as worker:
        running = worker.submit(
            Request(worker.encode("Once"), SamplingParams(max_tokens=60, ignore_eos=True))
        )
        said = [{"role": "user", "content": "Hello"}]
        with pytest.raises(RequestError, match="cannot be given to the worker process"):
            worker.encode_chat(said, tools=[nested])
        refused = worker.submit(Request(worker.encode("x"), adapter=nested)).result()
        assert "RecursionError" in str(refused.error)
        assert running.result().error is None
        assert worker.deaths == 0
