"""The engine on real files: Pebble on both runtimes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quantize.resolve import resolve
from runtimes.engine.engine import Engine
from runtimes.engine.prefix_pool import common_prefix
from runtimes.errors import ModelError, OutOfMemoryError, RequestError
from runtimes.request import Completion, FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings
from tests.runtimes.engine.gates import held
from tests.runtimes.ties import near_tie, near_ties

QUESTIONS = [
    "What is the capital of France?",
    "What is 23 + 45?",
    "Spell the word stone.",
    "Tell me a story about a fox.",
    "Who are you?",
    "Count from 3 to 9.",
    "What day comes after Monday?",
    "Reverse the word lamp.",
    "Make a JSON object with name Ana and age 31.",
    "What is the capital of Japan?",
    "What is 81 - 17?",
    "Tell me a story about a robot.",
    "What is the opposite of hot?",
    "What month comes before May?",
    "Tell me a story about the sea.",
    "What sound does a cow make?",
]
GREEDY = SamplingParams(max_tokens=40, top_logprobs=2)


@pytest.fixture(scope="module", params=["q4_k_m", "onnx-int8"])
def pebble_file(request: pytest.FixtureRequest, pebble_built: Path) -> Path:
    """The files that ``test_engine_features`` has not."""
    return resolve(pebble_built, recipe=request.param)


@pytest.fixture(scope="module")
def engine(pebble_file: Path) -> Iterator[Engine]:
    with Engine.load(pebble_file, RunnerSettings(slots=16, context=512)) as engine:
        yield engine


def chat(engine: Engine, text: str) -> list[int]:
    return engine.encode_chat([{"role": "user", "content": text}])


def ask(engine: Engine, text: str, **fields) -> Completion:
    return engine.submit(Request(chat(engine, text), SamplingParams(**fields))).result(60)


def test_stream_and_result_agree_and_figures_add_up(engine):
    params = SamplingParams(max_tokens=24)
    stream = engine.submit(Request(chat(engine, QUESTIONS[0]), params))
    stream.add_done_callback(lambda done: 1 / 0)  # does not end the engine
    text = "".join(chunk.text for chunk in stream)
    done = stream.result(1)
    assert "Paris" in text
    assert text == done.text
    assert (done.finish_reason, done.error) == (FinishReason.STOP, None)
    assert done.usage.completion_tokens == len(done.token_ids) <= 24
    t = done.timings
    assert 0 <= t.queue_s <= t.ttft_s <= t.total_s
    assert t.ttft_s == pytest.approx(t.queue_s + t.prefill_s, abs=1e-3)
    assert (t.decode_tps or 0) > 0
    assert list(stream) == []


def test_the_pieces_have_every_token(engine):
    """What begins a character gives no text yet; the piece that does names it too."""
    first, *_ = engine.encode("🦊")[-4:]  # of its four bytes
    params = SamplingParams(max_tokens=6, ignore_eos=True, logit_bias=((first, 1000.0),))
    stream = engine.submit(Request(chat(engine, "What is 2 + 2?"), params))
    chunks = list(stream)
    done = stream.result(1)
    assert done.token_ids == (first,) * 6
    assert [len(chunk.token_ids) for chunk in chunks] == [2, 1, 1, 1, 1, 0]
    assert "".join(chunk.text for chunk in chunks) == done.text == "\ufffd" * 6


def test_a_row_does_not_depend_on_its_companions(engine, record_property):
    """Alone and among 15 others: log-probabilities as close as the kernels allow, texts equal but
    for near-ties."""
    params = SamplingParams(max_tokens=48, logprobs=True, top_logprobs=2)
    prompts = [chat(engine, question) for question in QUESTIONS]
    together = engine.generate(prompts, params)
    alone = [engine.generate([prompt], params)[0] for prompt in prompts]
    within = near_tie(engine.model)
    near_ties(alone, together, within)
    differences = []
    for a, b in zip(alone, together, strict=True):
        same = common_prefix(a.token_ids, b.token_ids)
        pairs = zip(a.logprobs[:same], b.logprobs[:same], strict=True)
        differences += [abs(one - other) for one, other in pairs]
    record_property("worst difference", max(differences))
    assert max(differences) <= within


def test_a_shared_cache_gives_the_same_answers(gguf):
    """llama.cpp with one cache for all slots, where steps mix prefill and decode."""
    answers = []
    for unified in (False, True):
        settings = RunnerSettings(slots=8, context=256, unified_kv=unified)
        with Engine.load(gguf, settings) as engine:
            prompts = [chat(engine, question) for question in QUESTIONS]
            answers.append(engine.generate(prompts, replace(GREEDY, max_tokens=24)))
            within = near_tie(engine.model, unified=unified)
    near_ties(*answers, within)


def test_what_ends_an_answer(engine):
    whole = ask(engine, "Count from 3 to 9.", max_tokens=40)
    assert "7" in whole.text
    cut = ask(engine, "Count from 3 to 9.", max_tokens=40, stop=("7",))
    assert cut.text == whole.text[: whole.text.index("7")]
    assert cut.finish_reason is FinishReason.STOP
    few = ask(engine, "Who are you?", max_tokens=3)
    assert (few.finish_reason, len(few.token_ids)) == (FinishReason.LENGTH, 3)
    assert len(ask(engine, "What is 2 + 2?", max_tokens=50, ignore_eos=True).token_ids) == 50


def test_context_full_ends_with_its_own_reason(pebble_file):
    with Engine.load(pebble_file, RunnerSettings(slots=2, context=64)) as engine:
        prompt = chat(engine, "Tell me a story about a fox.")
        done = engine.submit(
            Request(prompt, SamplingParams(max_tokens=500, ignore_eos=True))
        ).result(60)
        assert done.finish_reason is FinishReason.CONTEXT
        assert done.usage.total_tokens == 64 + 1  # the last token needs no place in the cache
        again = engine.submit(Request(prompt, SamplingParams(max_tokens=4))).result(60)
        assert again.token_ids == done.token_ids[:4]


def test_prompts_that_cannot_be_served_are_refused_at_once(engine):
    with pytest.raises(RequestError, match="tokens; the context holds"):
        engine.submit(Request([5] * (engine.context + 1)))
    with pytest.raises(RequestError, match="outside"):
        engine.submit(Request([10**6]))
    with pytest.raises(RequestError, match="no tokens"):
        Request([])


def test_close_cancels_or_drains(gguf):
    for drain, expected in ((False, FinishReason.CANCELLED), (True, FinishReason.LENGTH)):
        engine = Engine.load(gguf, RunnerSettings(slots=2, context=512))
        params = SamplingParams(max_tokens=120, ignore_eos=True)
        closer = threading.Thread(target=engine.close, kwargs={"drain": drain})
        with held(engine):
            streams = [engine.submit(Request(chat(engine, q), params)) for q in QUESTIONS[:5]]
            closer.start()
            while not engine._closing:
                time.sleep(0.002)
        closer.join(60)
        reasons = {stream.result(1).finish_reason for stream in streams}
        assert reasons == {expected}
        with pytest.raises(RequestError, match="closed"):
            engine.submit(Request([5]))
        with pytest.raises(RequestError, match="closed"):
            engine.encode("its vocabulary has been freed")
        engine.close()


def test_a_truncated_graph_is_refused(pebble_built, tmp_path):
    import shutil

    folder = tmp_path / "onnx-int8"
    shutil.copytree(pebble_built / "onnx-int8", folder)
    data = next(folder.glob("*.data"))
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot load"):
        Engine.load(folder)


def test_more_than_fits_is_refused_with_what_would_fit(pebble_file):
    with pytest.raises(OutOfMemoryError, match="What fits: --slots"):
        Engine.load(pebble_file, RunnerSettings(slots=10**8))
