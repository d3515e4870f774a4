"""/v1/rerank, and /v1/embeddings of a model that only embeds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from tests.app.serve.conftest import running

QUERY = "what is the capital of france"
DOCUMENTS = ["a fox .", "paris is the capital of france .", "lima is a city in peru ."]


@pytest.fixture(scope="module")
def client(encoders, gguf_file) -> Iterator[OpenAI]:
    files = {name: encoders / f"{name}.gguf" for name in ("reranker", "bert", "classes")}
    with running({**files, "pebble": gguf_file}) as found:
        yield found.client()


def rerank(client: OpenAI, **body) -> dict:
    body = {"model": "reranker", "query": QUERY, "documents": DOCUMENTS, **body}
    return client.post("/rerank", body=body, cast_to=object)


def test_documents_come_by_what_transformers_gives_them(client, encoders):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    theirs = AutoModelForSequenceClassification.from_pretrained(encoders / "reranker")
    tokenizer = AutoTokenizer.from_pretrained(encoders / "reranker")
    expected, tokens = [], 0
    for document in DOCUMENTS:
        ids = tokenizer(QUERY, document)["input_ids"]
        tokens += len(ids)
        with torch.no_grad():
            expected.append(1 / (1 + math.exp(-float(theirs(torch.tensor([ids])).logits))))
    answer = rerank(client, return_documents=True)
    assert answer["model"] == "reranker"
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    for one in answer["results"]:
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], abs=1e-3)
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}


def test_forms(client):
    whole = rerank(client)["results"]
    assert rerank(client, top_n=1)["results"] == whole[:1]
    assert rerank(client, documents=[{"text": one} for one in DOCUMENTS])["results"] == whole
    assert "document" not in whole[0]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"query": None}, "query must be a text"),
        ({"query": ""}, "query must be a text; it is empty"),
        ({"documents": []}, "documents must be a list"),
        ({"documents": ["a", 1]}, "documents.1 must be a text; it is a number"),
        (
            {"documents": ["a", "fox " * 80]},
            "documents.1 and the query have .* holds 64",
        ),
        ({"top_n": 0}, "top_n"),
        ({"rank_fields": []}, "rank_fields is not supported"),
        ({"model": "pebble"}, "no reranker that runs here"),
        ({"model": "bert"}, "no reranker that runs here"),
        ({"model": "classes"}, "no reranker that runs here"),
    ],
)
def test_what_is_refused(client, body, said):
    with pytest.raises(BadRequestError, match=said):
        rerank(client, **body)


def test_an_encoder_embeds_and_answers_nothing(client):
    answer = client.embeddings.create(model="bert", input=[QUERY, "a fox ."])
    assert np.linalg.norm([one.embedding for one in answer.data], axis=1) == pytest.approx([1, 1])
    asked = {"model": "bert", "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(BadRequestError, match="is an encoder"):
        client.chat.completions.create(**asked)
    with pytest.raises(BadRequestError, match="is an encoder"):
        client.completions.create(model="bert", prompt="hi")
