"""Log-probabilities of a prompt's own tokens: against the float model, and whatever else runs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from runtimes.engine.engine import Engine
from runtimes.engine.loading import load_runner
from runtimes.errors import ParameterError, RequestError
from runtimes.models.registry import read_model
from runtimes.request import Completion, FinishReason, Priority, Request, SamplingParams
from runtimes.settings import RunnerSettings
from tests.runtimes.engine.gates import Watched, held

SCORE = SamplingParams(max_tokens=0, prompt_logprobs=3)
# Kernels add up in another order for another number of tokens; what very unlikely tokens have moves
# most. A position too far would be units away.
REGROUPED, REGROUPED_MEAN = 0.5, 0.02


@pytest.fixture(scope="module")
def texts(pebble: Path) -> list[str]:
    """Short and longer than what goes in at a time."""
    lines = (pebble / "graded.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[:6]]
    questions = [f"{row['messages'][-1]['content']}\n{row['answer']}" for row in rows]
    return [*questions, (pebble / "evaluation.txt").read_text()[:900]]


def score(engine: Engine, ids: list[int], params: SamplingParams = SCORE) -> Completion:
    return engine.submit(Request(ids, params)).result(120)


def softmax_logs(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


def known(done: Completion) -> np.ndarray:
    assert done.error is None
    assert done.prompt_logprobs is not None
    assert done.prompt_logprobs[0] is None
    return np.array(done.prompt_logprobs[1:], float)


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    gaps = np.abs(found - expected)
    return bool(gaps.max() < REGROUPED and gaps.mean() < REGROUPED_MEAN)


def test_as_the_same_file_has_them_at_once(engine, pebble_file, texts):
    ids = engine.encode(texts[-1])
    assert len(ids) > 200
    runner = load_runner(read_model(pebble_file), RunnerSettings(slots=1, context=512))
    with contextlib.closing(runner):
        logs = softmax_logs(runner.score(ids))
    done = score(engine, ids)
    assert near(known(done), logs[np.arange(len(ids) - 1), ids[1:]])
    assert done.prompt_top_logprobs is not None
    assert done.prompt_top_logprobs[0] is None
    for row, top in zip(logs, done.prompt_top_logprobs[1:], strict=False):
        assert top is not None
        values = list(top.values())
        assert values == sorted(values, reverse=True)
        assert np.abs(np.sort(row)[::-1][:3] - values).max() < REGROUPED
    assert set(ids) <= set(done.token_bytes or {})


def test_a_score_alone_has_no_tokens(engine, texts):
    before = engine.stats()
    done = score(engine, engine.encode(texts[0]))
    assert (done.text, done.token_ids, done.finish_reason) == ("", (), FinishReason.LENGTH)
    assert done.usage.completion_tokens == 0
    assert done.logprobs is None
    assert engine.stats().running == before.running == 0


def test_one_token_has_none_before_it(engine):
    done = score(engine, [40])
    assert done.prompt_logprobs == (None,)
    assert done.prompt_top_logprobs == (None,)


def test_samples_follow_as_without_it(engine, texts):
    ids = engine.encode(texts[0])
    alone = score(engine, ids, SamplingParams(max_tokens=12, logprobs=True, n=2))
    both = score(engine, ids, SamplingParams(max_tokens=12, logprobs=True, n=2, prompt_logprobs=0))
    assert [one.token_ids for one in both.choices] == [one.token_ids for one in alone.choices]
    assert both.prompt_top_logprobs is None
    for one in both.choices:
        assert len(known(one)) == len(ids) - 1


def test_a_cached_prompt_is_computed_again(engine, texts):
    ids = engine.encode(texts[-1])
    engine.trim()
    cold = known(score(engine, ids))
    warm = score(engine, ids)
    assert warm.usage.cached_tokens == 0
    assert near(known(warm), cold)
    # But what it has computed serves others.
    assert score(engine, ids, SamplingParams(max_tokens=1)).usage.cached_tokens > 200


def test_from_a_token_on_what_is_cached_before_it_serves(engine, texts):
    """Continuations of one text: it is computed once, and each has what it has in the whole."""
    ids = engine.encode(texts[-1])
    ends = [engine.encode(text)[-6:] for text in texts[:4]]
    whole = [known(score(engine, [*ids, *end]))[-6:] for end in ends]
    engine.trim()
    done = [
        engine.submit(Request([*ids, *end], SCORE, scored_from=len(ids))).result(120)
        for end in ends
    ]
    assert done[0].usage.cached_tokens == 0
    for one, expected in zip(done, whole, strict=True):
        assert one.prompt_logprobs is not None
        assert one.prompt_top_logprobs is not None
        assert one.prompt_logprobs[: len(ids)] == (None,) * len(ids)
        assert one.prompt_top_logprobs[len(ids) - 1] is None
        found = np.array(one.prompt_logprobs[len(ids) :], float)
        assert np.abs(found - expected).max() < REGROUPED
    assert all(one.usage.cached_tokens > len(ids) - 20 for one in done[1:])
    last = engine.submit(Request(ids, SCORE, scored_from=len(ids) - 1)).result(120)
    assert sum(value is not None for value in last.prompt_logprobs or ()) == 1


def test_beside_others(engine, texts):
    prompts = [engine.encode(text) for text in texts]
    alone = [known(score(engine, ids)) for ids in prompts]
    with held(engine):
        streams = [
            engine.submit(Request(ids, params))
            for ids in prompts
            for params in (SCORE, SamplingParams(max_tokens=20))
        ]
    done = [stream.result(120) for stream in streams]
    for found, expected in zip(done[::2], alone, strict=True):
        assert near(known(found), expected)
    assert all(one.error is None and one.prompt_logprobs is None for one in done[1::2])


@pytest.mark.parametrize("settings", [{"unified_kv": True}, {"reproducible": True}])
def test_in_other_caches(gguf, texts, settings):
    with Engine.load(gguf, RunnerSettings(slots=4, context=512, **settings)) as other:
        ids = other.encode(texts[-1])
        with held(other):
            streams = [other.submit(Request(ids, SCORE)) for _ in range(3)]
            streams.append(other.submit(Request(ids[:100], SamplingParams(max_tokens=30))))
        first, *rest = [known(stream.result(120)) for stream in streams[:3]]
        assert streams[3].result(120).error is None
        runner = load_runner(read_model(gguf), RunnerSettings(slots=1, context=512))
        with contextlib.closing(runner):
            logs = softmax_logs(runner.score(ids))[np.arange(len(ids) - 1), ids[1:]]
        assert near(first, logs)
        for one in rest:
            assert near(one, first)
            assert "reproducible" not in settings or np.array_equal(one, first)
        for _ in range(2):  # the second finds the prompt cached
            tail = other.submit(Request(ids, SCORE, scored_from=len(ids) - 9)).result(120)
            found = np.array((tail.prompt_logprobs or ())[-9:], float)
            assert np.abs(found - first[-9:]).max() < REGROUPED
            assert "reproducible" not in settings or np.array_equal(found, first[-9:])
        assert tail.usage.cached_tokens >= 128


def test_one_that_loses_its_slot_goes_on(pebble_file, engine, texts):
    """A long prompt is scored behind a request that is answered; an urgent one takes its slot."""
    ids = engine.encode(texts[-1])
    expected = known(score(engine, ids))
    with Engine.load(pebble_file, RunnerSettings(slots=1, context=512)) as one_slot:
        urgent = []

        def interrupt() -> None:
            if not urgent:
                request = Request(
                    ids[5:50], SamplingParams(max_tokens=4), priority=Priority.CRITICAL
                )
                urgent.append(one_slot.submit(request))

        params = SamplingParams(max_tokens=30, ignore_eos=True, prompt_logprobs=0)
        scored = Watched(one_slot, Request(ids, params, priority=Priority.LOW), interrupt)
        done = scored.result(120)
        assert urgent[0].result(120).error is None
        assert one_slot.stats().preemptions >= 1
    assert near(known(done), expected)
    assert len(done.token_ids) == 30


def test_what_cannot_be_asked():
    with pytest.raises(ParameterError, match="max_tokens must be at least 1"):
        SamplingParams(max_tokens=0)
    with pytest.raises(ParameterError, match="prompt_logprobs must be from 0 to 20"):
        SamplingParams(prompt_logprobs=21)
    with pytest.raises(ParameterError, match="max_tokens must be at least 0"):
        SamplingParams(max_tokens=-1, prompt_logprobs=0)
    for wrong in (0, 3):
        with pytest.raises(RequestError, match=f"scored_from is {wrong}"):
            Request([1, 2, 3], SCORE, scored_from=wrong)
