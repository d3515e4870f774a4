"""Samples, priorities, deadlines, prefix hits, sessions: the engine on real files."""

from __future__ import annotations

import threading
from dataclasses import replace
from queue import SimpleQueue

import pytest

from runtimes.engine.engine import Engine
from runtimes.engine.metrics import EngineStats
from runtimes.engine.sequence import RequestState, Sequence
from runtimes.errors import ModelError, RequestError
from runtimes.request import Completion, FinishReason, Priority, Request, SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.stream import Stream
from tests.runtimes.engine.gates import Watched, held
from tests.runtimes.engine.test_engine import QUESTIONS, chat
from tests.runtimes.ties import near_tie, near_ties

GREEDY = SamplingParams(max_tokens=32, top_logprobs=2)


def run(engine: Engine, text: str, params: SamplingParams, **fields) -> Completion:
    return engine.submit(Request(chat(engine, text), params, **fields)).result(60)


def test_samples_differ_and_share_one_prefill(engine):
    engine.trim()
    params = SamplingParams(max_tokens=24, temperature=1.2, seed=11, n=5)
    before = engine.stats()
    done = run(engine, "Tell me a story about a fox.", params)
    after = engine.stats()
    assert len(done.choices) == 5
    assert len({choice.text for choice in done.choices}) > 2
    assert after.prompt_tokens - before.prompt_tokens == done.usage.prompt_tokens
    assert [c.usage.cached_tokens for c in done.others] == [done.usage.prompt_tokens] * 4


def test_more_samples_than_slots(pebble_file):
    scheduling = SchedulerSettings(prefix_cache=False)
    with Engine.load(pebble_file, RunnerSettings(slots=2, context=256), scheduling) as engine:
        params = SamplingParams(max_tokens=12, temperature=1.0, seed=3, n=5, ignore_eos=True)
        done = run(engine, "Tell me a story about the sea.", params)
        assert [len(choice.token_ids) for choice in done.choices] == [12] * 5
        stream = engine.submit(Request(chat(engine, "Who are you?"), params))
        indices = {chunk.index for chunk in stream}
        assert indices == set(range(5))


def test_best_of_returns_the_likeliest(engine):
    fields = {"max_tokens": 16, "temperature": 1.5, "seed": 5, "logprobs": True}
    engine.trim()  # a prompt that is found in the cache has other last digits
    every = run(engine, "Tell me a story about a robot.", SamplingParams(n=6, **fields))
    engine.trim()
    best = run(engine, "Tell me a story about a robot.", SamplingParams(n=2, best_of=6, **fields))
    means = sorted((sum(c.logprobs) / len(c.logprobs) for c in every.choices), reverse=True)
    found = [sum(c.logprobs) / len(c.logprobs) for c in best.choices]
    assert found == pytest.approx(means[:2], abs=0.05)
    assert best.text in {choice.text for choice in every.choices}


def test_a_failed_sample_is_never_the_best(engine):
    stream = Stream("one", lambda _: None)
    request = Request([5], SamplingParams(best_of=2))
    state = RequestState(request, stream, 0.0, engine.tokenizer)
    state.sequences += [Sequence(state, index) for index in range(2)]
    failed, whole = state.sequences
    failed.logprobs, whole.logprobs = [-0.1], [-3.0, -2.0]
    failed.complete(FinishReason.ERROR, "a broken row")
    whole.complete(FinishReason.STOP)
    assert stream.result(1).finish_reason is FinishReason.STOP


def test_a_deadline_ends_a_request_with_what_it_has(engine):
    params = SamplingParams(max_tokens=480, ignore_eos=True)
    done = run(engine, "Who are you?", params, timeout_s=0.005)
    assert done.finish_reason is FinishReason.DEADLINE
    assert len(done.token_ids) < 480
    with pytest.raises(RequestError, match="timeout_s"):
        Request([1], timeout_s=0)


def test_min_tokens_and_top_logprobs(engine):
    forced = run(engine, "What is 2 + 2?", SamplingParams(max_tokens=40, min_tokens=39))
    assert len(forced.token_ids) >= 39
    done = run(engine, "Who are you?", SamplingParams(max_tokens=5, top_logprobs=3, logprobs=True))
    assert [len(tops) for tops in done.top_logprobs] == [3] * len(done.token_ids)
    for token, value, tops in zip(done.token_ids, done.logprobs, done.top_logprobs, strict=True):
        assert max(tops, key=lambda t: tops[t]) == token
        assert tops[token] == pytest.approx(value, abs=1e-5)
    with pytest.raises(RequestError, match="logit_bias"):
        engine.submit(Request([1], SamplingParams(logit_bias=((10**7, 1.0),))))


def test_the_next_turn_prefills_only_what_is_new(engine):
    engine.trim()
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    first = engine.submit(Request(engine.encode_chat(messages), GREEDY)).result(60)
    assert first.usage.cached_tokens == 0
    messages += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    prompt = engine.encode_chat(messages)
    second = engine.submit(Request(prompt, GREEDY)).result(60)
    assert second.usage.cached_tokens >= first.usage.prompt_tokens
    engine.trim()
    cold = engine.submit(Request(prompt, GREEDY)).result(60)
    assert cold.usage.cached_tokens == 0
    near_ties([cold], [second], near_tie(engine.model))


@pytest.mark.parametrize("keeps", [True, False])  # keys and values, or they are computed again
def test_preemption_changes_nothing_but_the_order(pebble_file, engine, keeps):
    story = "Tell me a story about a fox."
    expected = run(engine, story, GREEDY)
    scheduling, ended, urgent = SchedulerSettings(prefix_cache=keeps), list[str](), list[Stream]()
    with Engine.load(pebble_file, RunnerSettings(slots=1, context=256), scheduling) as one:

        def interrupt() -> None:
            if not urgent:
                request = Request(chat(one, "Who are you?"), GREEDY, priority=Priority.CRITICAL)
                urgent.append(one.submit(request))
                urgent[0].add_done_callback(lambda _: ended.append("urgent"))

        low = Watched(one, Request(chat(one, story), GREEDY, priority=Priority.LOW), interrupt)
        low.add_done_callback(lambda _: ended.append("low"))
        near_ties([expected], [low.result(60)], near_tie(one.model))
        assert one.stats().preemptions == 1
    assert ended == ["urgent", "low"]


def test_a_command_that_fails_harms_no_other(gguf, tmp_path):
    with Engine.load(gguf, RunnerSettings(slots=2, context=256)) as engine:
        prompt = chat(engine, QUESTIONS[0])
        told: SimpleQueue[BaseException] = SimpleQueue()

        def save() -> None:
            try:
                engine.save_session(5, tmp_path / "session")  # type: ignore[arg-type]
            except TypeError as error:
                told.put(error)

        with held(engine):  # so that what follows is taken as one
            bad = engine.submit(Request(prompt, SamplingParams(seed="no number")))  # type: ignore[arg-type]
            threading.Thread(target=save, daemon=True).start()
            good = engine.submit(Request(prompt, GREEDY))
        done = bad.result(60)
        assert done.finish_reason is FinishReason.ERROR
        assert "the engine failed" in done.error
        assert "int" in str(told.get(timeout=60))
        assert "Paris" in good.result(60).text
        assert "Paris" in run(engine, QUESTIONS[0], GREEDY).text, "it takes requests as before"


def test_a_conversation_survives_on_disk(pebble_file, engine, tmp_path):
    prompt = chat(engine, " ".join(QUESTIONS))
    expected = engine.submit(Request(prompt, GREEDY)).result(60)
    path = tmp_path / "talk.ingot-kv"
    kept = engine.save_session([*prompt, *expected.token_ids], path)
    assert kept >= len(prompt)
    with Engine.load(pebble_file, RunnerSettings(slots=2, context=512)) as other:
        assert other.load_session(path)[: len(prompt)] == prompt
        found = other.submit(Request(prompt, GREEDY)).result(60)
        assert found.usage.cached_tokens == len(prompt) - 1
        near_ties([expected], [found], near_tie(engine.model))
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(ModelError):
            other.load_session(path)
        with pytest.raises(RequestError, match="nothing"):
            other.save_session([3] * 40, path)


def test_a_full_context_can_be_shifted(gguf):
    settings = RunnerSettings(slots=2, context=64, context_shift=True)
    with Engine.load(gguf, settings) as engine:
        params = SamplingParams(max_tokens=300, ignore_eos=True)
        done = run(engine, "Tell me a story about a fox.", params)
        assert done.finish_reason is FinishReason.LENGTH
        assert len(done.token_ids) == 300
        engine.trim()  # a prompt that is found in the cache has other last digits
        again = run(engine, "Tell me a story about a fox.", GREEDY)
        assert again.token_ids[:20] == done.token_ids[:20]


def test_a_shared_cache_may_be_smaller_than_all_slots_at_their_longest(gguf):
    settings = RunnerSettings(slots=8, context=512, unified_kv=True, kv_tokens=300)
    params = SamplingParams(max_tokens=60, ignore_eos=True, top_logprobs=2)
    with Engine.load(gguf, replace(settings, kv_tokens=None)) as roomy:
        asked = [Request(chat(roomy, question), params) for question in QUESTIONS[:8]]
        wanted = [stream.result() for stream in [roomy.submit(one) for one in asked]]
        within = near_tie(roomy.model, unified=True)
    with Engine.load(gguf, settings) as engine:
        seen: list[EngineStats] = []
        with held(engine):
            streams = [Watched(engine, one, lambda: seen.append(engine.stats())) for one in asked]
        got = [stream.result() for stream in streams]
        stats = engine.stats()
        long = Request(chat(engine, "hi"), SamplingParams(max_tokens=600, ignore_eos=True))
        last = engine.submit(long).result()
    assert [done.finish_reason for done in got] == [FinishReason.LENGTH] * 8
    near_ties(wanted, got, within)
    assert stats.kv_capacity == 300
    assert max(one.kv_tokens for one in seen) <= 300
    # Eight slots are free, the budget admits as many rows as can all come to their ends.
    assert 2 <= max(one.running for one in seen) < 8
    assert last.finish_reason is FinishReason.CONTEXT


def test_a_budget_needs_a_shared_cache(pebble_file):
    with pytest.raises(RequestError, match="unified"):
        Engine.load(pebble_file, RunnerSettings(kv_tokens=700))


def test_stats_say_what_the_engine_does(engine):
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    seen: list[EngineStats] = []
    with held(engine):
        streams = [
            Watched(engine, Request(chat(engine, q), params), lambda: seen.append(engine.stats()))
            for q in QUESTIONS[:10]
        ]
    for stream in streams:
        stream.result(300)  # on a device of software
    assert max(stats.decoding for stats in seen) == 8
    assert max(stats.queued for stats in seen) >= 1
    assert max(stats.kv_tokens for stats in seen) > 8 * 40
    last = engine.stats()
    assert last.running == last.queued == 0
    assert last.ttft_s.p50 <= last.ttft_s.p90 <= last.ttft_s.p99
    assert last.tpot_s.p50 > 0
    assert last.decode_tps_10s > 0
    assert 0 < last.host_us_per_step < 1e5
