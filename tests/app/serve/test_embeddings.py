"""/v1/embeddings and /v1/rerank, as clients ask for them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from tests.app.serve.conftest import QUESTION, Running, running
from tests.support import until

TEXTS = ["The capital of France is Paris.", "What is 12 + 30?", "Paris lies in France. " * 30]
QUERY = "what is the capital of france"
DOCUMENTS = ["a fox .", "paris is the capital of france .", "lima is a city in peru ."]


def vectors(client: OpenAI, given, **fields) -> np.ndarray:
    answer = client.embeddings.create(model="pebble", input=given, **fields)
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data])


def tokens(client: OpenAI, text: str) -> list[int]:
    body = {"model": "pebble", "prompt": text}
    return client.post("/tokenize", body=body, cast_to=object)["tokens"]


def test_they_are_the_mean_of_the_float_models_last_states(client, pebble):
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(pebble, dtype=torch.float32)
    found = vectors(client, TEXTS)
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            states = model(torch.tensor([tokens(client, text)])).last_hidden_state[0].numpy()
        mean = states.mean(axis=0)
        assert vector @ mean / np.linalg.norm(mean) > 0.995


def test_forms_sizes_and_counts(client, server):
    def read() -> int:
        return server.engine().stats().prompt_tokens

    before = read()
    whole = vectors(client, TEXTS[0])
    assert np.abs(vectors(client, TEXTS[0], encoding_format="float") - whole).max() < 1e-3
    ids = tokens(client, TEXTS[0])
    assert np.abs(vectors(client, [ids, ids]) - whole).max() < 1e-3
    short = vectors(client, ids, dimensions=16)
    assert short.shape == (1, 16)
    assert np.abs(short - whole[:, :16] / np.linalg.norm(whole[:, :16])).max() < 1e-3
    answer = client.embeddings.create(model="pebble", input=TEXTS[0])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == len(ids)
    until(lambda: read() >= before + 6 * len(ids))


def test_beside_answers(client):
    """What runs is not disturbed, nor are they."""
    asked = {"model": "pebble", "prompt": TEXTS[0], "max_tokens": 12}
    for _ in range(2):  # the second one, as the one below, begins with what is cached
        whole = client.completions.create(**asked).choices[0].text
    alone = vectors(client, TEXTS[0])
    text = ""
    for event in client.completions.create(stream=True, **asked):
        text += event.choices[0].text
        assert np.abs(vectors(client, TEXTS[0]) - alone).max() < 1e-3
    assert text == whole


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"input": [10**6]}, "token id outside"),
        ({"input": [1, -1]}, "token id outside"),
        ({"input": "a", "dimensions": 10**6}, "dimensions is 1,000,000"),
        ({"input": "word " * 20000}, "the context holds"),
        ({"input": "a", "model": "pebble-onnx"}, "gives no embeddings"),
    ],
)
def test_what_a_model_cannot_embed(client, body, said):
    with pytest.raises(BadRequestError, match=said):
        client.post("/embeddings", body={"model": "pebble", **body}, cast_to=object)
    assert vectors(client, "Still there?").shape[0] == 1


@pytest.fixture(scope="module")
def ranking(encoders, gguf_file) -> Iterator[Running]:
    files = {name: encoders / f"{name}.gguf" for name in ("reranker", "bert", "classes")}
    with running({**files, "pebble": gguf_file}) as found:
        yield found


def rerank(server: Running, **body) -> dict:
    body = {"model": "reranker", "query": QUERY, "documents": DOCUMENTS, **body}
    return server.ask(body, "/v1/rerank")[1]


def test_documents_come_by_what_transformers_gives_them(ranking, encoders):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    theirs = AutoModelForSequenceClassification.from_pretrained(encoders / "reranker")
    tokenizer = AutoTokenizer.from_pretrained(encoders / "reranker")
    expected, count = [], 0
    for document in DOCUMENTS:
        ids = tokenizer(QUERY, document)["input_ids"]
        count += len(ids)
        with torch.no_grad():
            expected.append(1 / (1 + math.exp(-float(theirs(torch.tensor([ids])).logits))))
    answer = rerank(ranking, return_documents=True)
    assert answer["model"] == "reranker"
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    for one in answer["results"]:
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], abs=1e-3)
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}
    whole = rerank(ranking)["results"]
    assert "document" not in whole[0]
    assert rerank(ranking, top_n=1)["results"] == whole[:1]
    assert rerank(ranking, documents=[{"text": one} for one in DOCUMENTS])["results"] == whole


def test_what_a_model_cannot_do_is_said(ranking):
    long = rerank(ranking, documents=["a", "fox " * 80])["error"]["message"]
    assert "documents.1 and the query have" in long
    assert "holds 64" in long
    for name in ("pebble", "bert", "classes"):
        said = rerank(ranking, model=name)["error"]["message"]
        assert "no reranker that runs here" in said
    client = ranking.client()
    answer = client.embeddings.create(model="bert", input=[QUERY, "a fox ."])
    assert np.linalg.norm([one.embedding for one in answer.data], axis=1) == pytest.approx([1, 1])
    for body, path in (
        ({"messages": QUESTION}, "chat/completions"),
        ({"prompt": "x"}, "completions"),
    ):
        status, said = ranking.ask({"model": "bert", **body}, f"/v1/{path}")
        assert (status, "is an encoder" in said["error"]["message"]) == (400, True)
