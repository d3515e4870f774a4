"""Encoders on llama.cpp: the same vectors and scores as transformers."""

from __future__ import annotations

import numpy as np
import pytest

from runtimes.engine.engine import Engine
from runtimes.errors import ModelError, RequestError
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.request import Request, SamplingParams
from runtimes.settings import RunnerSettings

TEXTS = ["What is the capital of France ?", "a fox .", "tell me a story about a fox in paris"]


def embedded(engine: Engine, ids: list[int]) -> tuple[float, ...] | None:
    return engine.submit(Request(ids, embed=True)).result(60).embedding


def test_a_text_has_the_vector_of_transformers(encoders):
    import torch
    from transformers import AutoModel, AutoTokenizer

    theirs = AutoModel.from_pretrained(encoders / "bert")
    tokenizer = AutoTokenizer.from_pretrained(encoders / "bert")
    engine = Engine.load(encoders / "bert.gguf")
    try:
        assert engine.model.encodes
        assert not engine.model.scores_pairs
        for text in TEXTS:
            ids = engine.encode(text)
            assert ids == tokenizer(text)["input_ids"]
            with torch.no_grad():
                first = theirs(torch.tensor([ids])).last_hidden_state[0, 0].numpy()
            found = np.array(embedded(engine, ids))
            assert np.abs(found - first / np.linalg.norm(first)).max() < 1e-3
        with pytest.raises(RequestError, match="the context holds 64"):
            embedded(engine, [5] * 65)
        with pytest.raises(RequestError, match="is an encoder"):
            engine.submit(Request([1, 2], SamplingParams()))
        with pytest.raises(RequestError, match="is an encoder"):
            engine.encode_chat([{"role": "user", "content": "hi"}])
    finally:
        engine.close()


def test_a_pair_has_the_score_of_transformers(encoders):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    theirs = AutoModelForSequenceClassification.from_pretrained(encoders / "reranker")
    tokenizer = AutoTokenizer.from_pretrained(encoders / "reranker")
    engine = Engine.load(encoders / "reranker.gguf")
    try:
        assert engine.model.scores_pairs
        for text in TEXTS[1:]:
            ids = tokenizer(TEXTS[0], text)["input_ids"]
            with torch.no_grad():
                expected = float(theirs(torch.tensor([ids])).logits)
            assert embedded(engine, ids) == pytest.approx([expected], abs=2e-3)
    finally:
        engine.close()


def test_no_memory_for_keys_and_values(encoders):
    model = read_model(encoders / "bert.gguf")
    few, many = (estimate(model, RunnerSettings(slots=n, context=64)) for n in (1, 8))
    assert few == many
    assert few.weights == model.nbytes


def test_a_damaged_one(encoders, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((encoders / "bert.gguf").read_bytes()[:-1000])
    with pytest.raises(ModelError, match="truncated"):
        Engine.load(cut)
