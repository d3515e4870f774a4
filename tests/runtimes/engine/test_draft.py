"""A draft model on real files: its guesses change no answer, and what it is refused for."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quantize.resolve import resolve
from runtimes.engine.engine import Engine
from runtimes.engine.loading import load_with_draft
from runtimes.engine.propose import Proposer
from runtimes.errors import ModelError
from runtimes.llamacpp.backend import BACKEND as LLAMACPP
from runtimes.models.memory import draft_settings, estimate
from runtimes.models.registry import read_model
from runtimes.request import Constraint, Request, SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings
from tests.runtimes.engine.histories import held_by
from tests.runtimes.engine.test_engine import chat
from tests.runtimes.engine.test_propose import SCHEMA
from tests.runtimes.ties import near_tie, near_ties

QUESTIONS = ("Tell a story about a fox.", "What is the sea?", "Count to ten.", "Who are you?")
ANIMAL = {"type": "object", "properties": {"animal": {"type": "string", "maxLength": 20}}}


class Always(Proposer):
    """Has the draft guess at every step, whatever it costs."""

    depth = 4

    def propose(self, decoding, most):
        wanted = {}
        for one in decoding:
            left = one.request.params.max_tokens - len(one.output) - 1
            room = min(self.depth, left, most, self.draft.room(one))
            if room > 0:
                wanted[one], most = room, most - room
        return self._ask_draft(wanted)

    def learn(self, rows, more, seconds, accepted):
        self.draft.settle(one for one, _ in accepted)
        for one, held in held_by(self.draft).items():
            assert held == one.tokens(0, len(held))


def drafting(model: Path, draft: Path, **fields) -> Engine:
    """An engine whose draft guesses at every step."""
    settings = RunnerSettings(**{"slots": 1, "context": 512, "draft": draft, **fields})
    engine = Engine.load(model, settings)
    scheduler = engine._core.scheduler
    assert scheduler.proposer is not None
    assert scheduler.proposer.draft is not None
    scheduler.proposer = Always(scheduler.proposer.draft)
    return engine


@pytest.fixture(
    scope="module",
    params=[
        ("q8_0", "q4_k_m", True, 3),
        ("onnx-int8", "q8_0", False, 2),
        ("q8_0", "onnx-int4", False, 1),
    ],
    ids=["unified", "onnx", "onnx-draft"],
)
def engines(request, pebble_built: Path) -> Iterator[tuple[Engine, Engine]]:
    """Without speculation, and with a draft that guesses at every step."""
    recipe, draft, unified, slots = request.param
    path = resolve(pebble_built, recipe=recipe)
    settings = RunnerSettings(slots=slots, context=512, unified_kv=unified)
    with (
        Engine.load(path, settings) as plain,
        drafting(
            path, resolve(pebble_built, recipe=draft), slots=slots, unified_kv=unified
        ) as other,
    ):
        yield plain, other


VARIANTS = {
    "samples": {"temperature": 0.7, "seed": 9, "n": 2},
    "json": {"constraint": Constraint("json_schema", json.dumps(ANIMAL))},
    "long": {"ignore_eos": True, "max_tokens": 80},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_answers_are_the_same(engines, name):
    params = SamplingParams(**{"max_tokens": 48, "top_logprobs": 2, **VARIANTS[name]})
    done = [
        [engine.submit(Request(chat(engine, text), params)) for text in QUESTIONS]
        for engine in engines
    ]
    plain, other = ([stream.result(120) for stream in streams] for streams in done)
    if params.temperature == 0:
        model = engines[0].model
        # Two runtimes round differently by how many tokens go in, and the cache is a shared one.
        near_ties(plain, other, within=max(near_tie(model, unified=True), 0.1))
    else:
        assert sum(a.token_ids == b.token_ids for a, b in zip(plain, other, strict=True)) >= 2
    alone = engines[1]._core.kv.capabilities.mixed_batch or engines[1].slots == 1
    if name == "long" and alone:
        times = [one.timings for one in other]
        assert all(0 < one.accepted_drafts <= one.drafted_tokens for one in times)
        assert all(one.drafted_tokens == one.proposed_tokens for one in times)
        stats = engines[1].stats()
        assert stats.draft
        assert stats.accepted_drafts > 0.5 * stats.drafted_tokens > 100


def test_another_vocabulary_is_refused(gguf):
    other = LLAMACPP.selftest
    with pytest.raises(
        ModelError, match=r"cannot be the draft of .*: token \d+ is .* to the model"
    ):
        Engine.load(gguf, RunnerSettings(slots=1, context=128, draft=other))


@pytest.mark.parametrize("cut", [None, 100_000])
def test_a_missing_or_truncated_draft_is_refused(gguf, tmp_path, cut):
    draft = tmp_path / "small.gguf"
    if cut:
        draft.write_bytes(gguf.read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"small\.gguf"):
        Engine.load(gguf, RunnerSettings(slots=1, context=128, draft=draft))


def test_it_counts_in_the_estimate_and_is_left_out_where_memory_is_short(gguf, monkeypatch, caplog):
    model, settings = read_model(gguf), RunnerSettings(slots=2, context=512, gpu_layers=0)
    with_draft = replace(settings, draft=gguf)
    alone = estimate(model, settings).total
    both = estimate(model, with_draft).total
    assert both == alone + estimate(model, draft_settings(with_draft)).total
    monkeypatch.setattr("runtimes.engine.loading.memory_now", lambda: (both, both - 1))
    with caplog.at_level(logging.WARNING):
        runner, draft = load_with_draft(model, with_draft)
    runner.close()
    assert draft is None
    assert f"without the draft {gguf.name}" in caplog.text


def test_who_cannot_verify_has_none(gguf, caplog):
    settings = RunnerSettings(slots=1, context=256, reproducible=True, draft=gguf)
    eager = SchedulerSettings(speculation=True)
    with caplog.at_level(logging.WARNING), Engine.load(gguf, settings, eager) as engine:
        assert engine.stats().draft is None
        assert engine._core.scheduler.proposer is None
        params = SamplingParams(
            max_tokens=60, constraint=Constraint("json_schema", json.dumps(SCHEMA))
        )
        done = engine.submit(Request(chat(engine, "Make a record."), params)).result(120)
        assert done.timings.forced_tokens == 0
    assert "cannot verify guesses in reproducible steps" in caplog.text


def test_a_draft_that_fails_is_left_out(gguf, caplog):
    with drafting(gguf, gguf) as engine:
        draft = engine._core.scheduler.proposer.draft

        def broken(plan):
            raise ModelError("the draft's step failed")

        draft._runner.execute = broken
        prompts = [chat(engine, text) for text in QUESTIONS]
        with caplog.at_level(logging.WARNING):
            done = engine.generate(prompts, SamplingParams(max_tokens=20, ignore_eos=True))
        assert all(len(one.token_ids) == 20 for one in done)
        assert engine.stats().draft is None
    assert "guesses no more" in caplog.text
