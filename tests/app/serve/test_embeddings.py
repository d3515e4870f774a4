"""/v1/embeddings, as the openai client asks for them."""

from __future__ import annotations

import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from tests.support import until

TEXTS = ["The capital of France is Paris.", "What is 12 + 30?", "Paris lies in France. " * 30]


@pytest.fixture(scope="module")
def client(server) -> OpenAI:
    return server.client()


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


def test_forms_and_sizes(client):
    whole = vectors(client, TEXTS[0])
    assert np.abs(vectors(client, TEXTS[0], encoding_format="float") - whole).max() < 1e-3
    ids = tokens(client, TEXTS[0])
    assert np.abs(vectors(client, [ids, ids]) - whole).max() < 1e-3
    short = vectors(client, ids, dimensions=16)
    assert short.shape == (1, 16)
    assert np.abs(short - whole[:, :16] / np.linalg.norm(whole[:, :16])).max() < 1e-3
    answer = client.embeddings.create(model="pebble", input=TEXTS[0])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == len(ids)


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


def test_their_tokens_are_counted(client, server):
    def read() -> int:
        return server.pool.loaded()["pebble"].engine.stats().prompt_tokens

    before = read()
    tokens = client.embeddings.create(model="pebble", input=TEXTS).usage.prompt_tokens
    until(lambda: read() >= before + tokens)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "no 'input'"),
        ({"input": ""}, "input must be a text or a list of token ids; it is empty"),
        ({"input": ["a", ""]}, "input.1 must be"),
        ({"input": []}, "input must be"),
        ({"input": [[1, True]]}, "input.0 must be"),
        ({"input": [10**6]}, "token id outside"),
        ({"input": [1, -1]}, "token id outside"),
        ({"input": "a", "encoding_format": "int8"}, "float or base64"),
        ({"input": "a", "dimensions": 0}, "above 0"),
        ({"input": "a", "dimensions": 10**6}, "dimensions is 1,000,000"),
        ({"input": "a", "pooling": "cls"}, "pooling is not supported"),
        ({"input": "word " * 20000}, "the context holds"),
        ({"input": "a", "model": "pebble-onnx"}, "gives no embeddings"),
    ],
)
def test_what_is_refused(client, body, said):
    with pytest.raises(BadRequestError, match=said):
        client.post("/embeddings", body={"model": "pebble", **body}, cast_to=object)
    assert vectors(client, "Still there?").shape[0] == 1
