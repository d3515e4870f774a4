"""Thoughts in the engine, on both runtimes: streamed apart, bounded, the same however they run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from runtimes.engine.engine import Engine
from runtimes.request import Completion, Constraint, Request, SamplingParams, Thinking
from runtimes.sampling.thoughts import ThoughtTokens
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.thinking import thought_form
from runtimes.worker.engine import WorkerEngine

FORM = thought_form("<think>")
assert FORM is not None
SENTENCE = "I have to answer now."
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 5}},
    "required": ["a"],
    "additionalProperties": False,
}
SCHEMA = Constraint("json_schema", json.dumps(OBJECT))


def request_of(engine: Engine, params: SamplingParams, question: str = "Who are you?") -> Request:
    """A prompt whose template has begun a thought, which Pebble never ends by itself."""
    text = f"<|user|>\n{question}<|end|>\n<|assistant|>\n<think>\n"
    ids = engine.tokenizer.encode(text, add_special=True, parse_special=True)
    assert FORM is not None
    return Request(ids, params, thinking=Thinking(FORM))


def ask(engine: Engine, params: SamplingParams) -> Completion:
    stream = engine.submit(request_of(engine, params))
    chunks = list(stream)
    done = stream.result(60)
    for one in done.choices:
        index = done.choices.index(one)
        own = [chunk for chunk in chunks if chunk.index == index]
        assert "".join(chunk.text for chunk in own if chunk.thought) == (one.thought or "")
        assert "".join(chunk.text for chunk in own if not chunk.thought) == one.text
    return done


def test_a_bound_is_kept(engine: Engine) -> None:
    done = ask(engine, SamplingParams(max_tokens=80, think_tokens=6, ignore_eos=True))
    assert done.thought is not None
    assert done.thought.endswith(SENTENCE)
    assert done.text
    assert 6 < done.usage.thought_tokens < done.usage.completion_tokens == 80
    assert not done.thinks


@pytest.mark.parametrize(
    ("end", "begun"), [("<think>\n", True), ("<think>\n\n</think>\n\n", True), ("", False)]
)
def test_the_place_before_a_thought_is_what_later_prompts_go_on_from(
    engine: Engine, end: str, begun: bool
) -> None:
    text = "<|user|>\nWhat does <think> mean?<|end|>\n<|assistant|>\n"
    encode = partial(engine.tokenizer.encode, add_special=True, parse_special=True)
    before, prompt = encode(text), encode(text + end)
    assert FORM is not None
    at = ThoughtTokens(engine.tokenizer, FORM).begin(prompt)
    assert prompt[:at] == (before if begun else prompt)


def test_forced_tokens_cost_no_step(pebble_file: Path, engine: Engine) -> None:
    params = SamplingParams(max_tokens=60, think_tokens=4, constraint=SCHEMA)
    settings = RunnerSettings(slots=4, context=512)
    with Engine.load(pebble_file, settings, SchedulerSettings(speculation=True)) as guessing:
        done = ask(guessing, params)
        assert guessing.stats().steps < done.usage.completion_tokens - 15
    assert set(json.loads(done.text)) == {"a"}
    assert done.text == ask(engine, params).text


@pytest.mark.parametrize("constraint", [None, SCHEMA])
def test_samples_have_thoughts_of_their_own(engine: Engine, constraint: Constraint | None) -> None:
    params = SamplingParams(
        max_tokens=90, temperature=1.0, seed=4, n=3, think_tokens=8, constraint=constraint
    )
    done = ask(engine, params)
    assert len({one.thought for one in done.choices}) == 3
    if constraint is not None:
        assert all(set(json.loads(one.text)) == {"a"} for one in done.choices)
    best = ask(engine, SamplingParams(max_tokens=40, temperature=1.0, seed=4, best_of=3))
    assert best.thought


def test_log_probabilities_change_nothing(engine: Engine) -> None:
    plain = ask(engine, SamplingParams(max_tokens=60, think_tokens=5))
    told = ask(engine, SamplingParams(max_tokens=60, think_tokens=5, logprobs=True))
    assert (told.thought, told.text) == (plain.thought, plain.text)
    assert told.logprobs is not None
    assert len(told.logprobs) == told.usage.completion_tokens


def test_stop_texts_count_in_the_answer_only(engine: Engine) -> None:
    whole = ask(engine, SamplingParams(max_tokens=60, think_tokens=5))
    assert whole.thought is not None
    stop = ask(engine, SamplingParams(max_tokens=60, think_tokens=5, stop=("have to", "I")))
    assert stop.thought == whole.thought
    assert "I" not in stop.text


def test_a_worker_hands_on_both(pebble_file: Path, engine: Engine) -> None:
    params = SamplingParams(max_tokens=60, think_tokens=6)
    with WorkerEngine.load(pebble_file, RunnerSettings(slots=4, context=512)) as worker:
        stream = worker.submit(request_of(engine, params))
        chunks, done = list(stream), stream.result(60)
    assert "".join(chunk.text for chunk in chunks if chunk.thought) == done.thought
    assert done.thought == ask(engine, params).thought
