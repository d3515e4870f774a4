"""Texts to embed as requests: in the order of their arrival, between the steps of answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quantize.resolve import resolve
from runtimes.engine.engine import Engine
from runtimes.errors import RequestError
from runtimes.models.registry import backend_of
from runtimes.request import FinishReason, Request, SamplingParams
from runtimes.settings import RunnerSettings
from tests.runtimes.engine.gates import held

TEXTS = ["The capital of France is Paris.", "What is 12 + 30?", "Paris lies in France. " * 20]


@pytest.fixture(scope="module")
def engine(gguf: Path) -> Iterator[Engine]:
    with Engine.load(gguf, RunnerSettings(slots=2, context=256)) as engine:
        yield engine


def test_each_is_as_if_it_were_asked_at_once(engine):
    prompts = [engine.encode(text) for text in TEXTS]
    asked = [Request(ids, embed=True) for ids in prompts]
    alone = [engine.submit(one).result(120).embedding for one in asked]
    before = engine.stats()
    with held(engine):
        answer = engine.submit(Request(prompts[0], SamplingParams(max_tokens=8, ignore_eos=True)))
        streams = [engine.submit(Request(ids, embed=True)) for ids in prompts]
    for stream, ids, expected in zip(streams, prompts, alone, strict=True):
        done = stream.result(120)
        assert (done.finish_reason, done.text, done.token_ids) == (FinishReason.STOP, "", ())
        assert done.usage.prompt_tokens == len(ids)
        assert done.timings.total_s >= done.timings.prefill_s > 0
        assert done.embedding is not None
        assert np.abs(np.array(done.embedding) - expected).max() < 1e-6
    assert len(answer.result(120).token_ids) == 8
    assert answer.result().embedding is None
    read = engine.stats().prompt_tokens - before.prompt_tokens
    assert read >= sum(map(len, prompts))


def test_one_that_waits_can_be_taken_back_or_be_late(engine):
    ids = engine.encode(TEXTS[0])
    with held(engine):
        first, second = (engine.submit(Request(ids, embed=True)) for _ in range(2))
        late = engine.submit(Request(ids, embed=True, timeout_s=1e-6))
        second.cancel()
    assert first.result(120).embedding is not None
    assert second.result(120).finish_reason is FinishReason.CANCELLED
    assert late.result(120).finish_reason is FinishReason.DEADLINE


def test_what_does_not_fit_is_refused(engine):
    assert engine.submit(Request([5] * 256, embed=True)).result(120).embedding is not None
    with pytest.raises(RequestError, match="the text has 257 tokens; the context holds 256"):
        engine.submit(Request([5] * 257, embed=True))
    with pytest.raises(RequestError, match="token id outside"):
        engine.submit(Request([10**6], embed=True))


def test_a_graph_has_none(pebble_built):
    path = resolve(pebble_built, recipe="onnx-int8")
    with Engine.load(path, RunnerSettings(slots=1, context=128)) as engine:
        assert not backend_of(engine.model).embeds
        done = engine.submit(Request([5, 6], embed=True)).result(120)
        assert done.finish_reason is FinishReason.ERROR
        assert "an ONNX graph gives no embeddings" in (done.error or "")
