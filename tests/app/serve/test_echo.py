"""Prompts said again with their log-probabilities, and several prompts in a body."""

from __future__ import annotations

import pytest
from openai import BadRequestError, OpenAI

TEXT = "The capital of France is Paris. Zürich, naïve 東京."


def echoed(client: OpenAI, prompt, **fields):
    return client.completions.create(model="pebble", prompt=prompt, echo=True, **fields)


def test_each_token_of_the_prompt_has_its_place(client):
    answer = echoed(client, TEXT, logprobs=2, max_tokens=0)
    found = answer.choices[0]
    assert (found.text, found.finish_reason, answer.usage.completion_tokens) == (TEXT, "length", 0)
    logs = found.logprobs
    count = answer.usage.prompt_tokens
    assert len(logs.tokens) == len(logs.token_logprobs) == len(logs.text_offset) == count
    assert logs.token_logprobs[0] is None
    assert logs.top_logprobs[0] is None
    assert all(value <= 0 for value in logs.token_logprobs[1:])
    assert logs.text_offset == sorted(logs.text_offset)
    for token, offset in zip(logs.tokens, logs.text_offset, strict=True):
        assert "\ufffd" in token or TEXT.startswith(token if offset else token.lstrip(), offset)
    # The prompt's own token is there beside the likeliest.
    for token, value, top in zip(
        logs.tokens[1:], logs.token_logprobs[1:], logs.top_logprobs[1:], strict=True
    ):
        assert 1 <= len(top) <= 3
        assert max(top.values()) >= value
        assert token in top


def test_the_answer_follows_its_prompt(client):
    plain = client.completions.create(model="pebble", prompt=TEXT, max_tokens=6, logprobs=1)
    whole = echoed(client, TEXT, logprobs=1, max_tokens=6)
    assert whole.choices[0].text == TEXT + plain.choices[0].text
    count = whole.usage.prompt_tokens
    logs = whole.choices[0].logprobs
    # All that was sampled, also a token that ended the answer.
    assert len(logs.tokens) - count == whole.usage.completion_tokens
    own = plain.choices[0].logprobs
    assert logs.tokens[count : count + len(own.tokens)] == own.tokens
    assert [at - len(TEXT) for at in logs.text_offset[count:]][: len(own.tokens)] == own.text_offset
    without = echoed(client, TEXT, max_tokens=6).choices[0]
    assert (without.text, without.logprobs) == (whole.choices[0].text, None)


def test_several_prompts_have_choices_in_their_order(client):
    texts = ["One, two, three,", TEXT, "What is 2 + 2?"]
    ids = [
        client.post("/tokenize", body={"model": "pebble", "prompt": text}, cast_to=object)["tokens"]
        for text in texts
    ]
    by_text = echoed(client, texts, logprobs=1, max_tokens=1, n=2)
    by_ids = echoed(client, ids, logprobs=1, max_tokens=1, n=2)
    assert [one.index for one in by_text.choices] == list(range(6))
    assert by_text.usage.prompt_tokens == by_ids.usage.prompt_tokens == sum(map(len, ids))
    for number, (one, other) in enumerate(zip(by_text.choices, by_ids.choices, strict=True)):
        assert one.text.startswith(texts[number // 2])
        assert one.logprobs.tokens == other.logprobs.tokens
        pairs = zip(one.logprobs.token_logprobs, other.logprobs.token_logprobs, strict=True)
        assert all(a == b or abs(a - b) < 0.5 for a, b in pairs)
    alone = echoed(client, ids[1], logprobs=1, max_tokens=1)
    assert alone.choices[0].logprobs.tokens == by_ids.choices[2].logprobs.tokens


def test_more_prompts_than_may_wait(client, server):
    texts = [f"Number {number}" for number in range(256)]
    answer = client.completions.create(model="pebble", prompt=texts, max_tokens=1)
    assert len(answer.choices) == 256
    assert server.generator.running("pebble") == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": [[1, 2], [1, 10**6]]}, "token id outside"),
        ({"prompt": [-1, 2]}, "token id"),
        ({"prompt": "a", "echo": True, "stream": True}, "cannot be streamed"),
        ({"prompt": ["a", "b"], "stream": True}, "cannot be streamed"),
    ],
)
def test_what_is_refused(client, server, body, said):
    with pytest.raises(BadRequestError, match=said):
        client.post("/completions", body={"model": "pebble", **body}, cast_to=object)
    assert server.generator.running("pebble") == 0
