"""The `openai` package's own calls against a server on both runtimes."""

from __future__ import annotations

import json
from typing import Literal

import httpx2
import pytest
from openai import APIStatusError, OpenAI
from pydantic import BaseModel

from tests.app.serve.conftest import Running

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(params=["pebble", "pebble-onnx"])
def model(request) -> str:
    return request.param


@pytest.fixture
def client(server: Running) -> OpenAI:
    return server.client()


def test_a_chat_has_an_answer_counts_and_times(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    extra = answer.model_extra
    assert extra["timings"]["ttft_s"] > 0
    assert extra["context"]["used"] == answer.usage.total_tokens
    assert answer.model == model


def test_a_stream_is_the_same_text_in_pieces(client, model):
    whole = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=12)
    events = list(
        client.chat.completions.create(
            model=model,
            messages=QUESTION,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(one.choices[0].delta.content or "" for one in events if one.choices)
    assert text == whole.choices[0].message.content
    assert [one.choices[0].finish_reason for one in events if one.choices][-1] == (
        whole.choices[0].finish_reason
    )
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(events) > 3


def test_an_answer_goes_on_from_the_last_message(client, model):
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of"}]
    asked = {"model": model, "messages": begun}
    whole = client.chat.completions.create(**asked)
    text = whole.choices[0].message.content
    assert "The capital of" + text == (
        client.chat.completions.create(model=model, messages=QUESTION).choices[0].message.content
    )
    events = client.chat.completions.create(stream=True, **asked)
    assert "".join(one.choices[0].delta.content or "" for one in events) == text
    for form in (
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "x"}}]},
    ):
        with pytest.raises(APIStatusError, match="neither tools nor a form"):
            client.chat.completions.create(**asked, **form)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_any_text_comes_through_in_an_event(server, path):
    """Events are put together of what is the same in all of them and the text."""
    text = 'say "\\n"\n\té%s{0}'
    body = {"n": 2, "max_tokens": 60, "stream": True, "structured_outputs": {"choice": [text]}}
    body |= {"prompt": "Say"} if path == "completions" else {"messages": QUESTION}
    with httpx2.stream("POST", f"{server.address}/v1/{path}", json=body, timeout=60) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    said, heads = ["", ""], []
    for event in events:
        (choice,) = event.pop("choices")
        heads.append(event)
        piece = choice.pop("text") if path == "completions" else choice.pop("delta").get("content")
        said[choice["index"]] += piece or ""
        assert choice.keys() == {"index", "logprobs", "finish_reason"}
    assert said == [text, text]
    assert len(heads) > 4
    assert heads == [heads[0]] * len(heads)


def test_several_samples_are_told_apart_in_a_stream(client, model):
    asked = {"model": model, "messages": QUESTION, "n": 3, "seed": 7, "max_tokens": 8}

    def streamed(temperature: float) -> list[str]:
        texts = ["", "", ""]
        events = client.chat.completions.create(stream=True, temperature=temperature, **asked)
        for event in events:
            for choice in event.choices:
                texts[choice.index] += choice.delta.content or ""
        return texts

    whole = client.chat.completions.create(temperature=0, **asked)
    assert streamed(0) == [one.message.content for one in whole.choices]
    assert len(set(streamed(3.0))) > 1


def test_completions_continue_a_text(client, model):
    answer = client.completions.create(model=model, prompt="One, two, three,", max_tokens=4)
    assert answer.choices[0].text
    assert answer.usage.completion_tokens <= 4
    pieces = client.completions.create(
        model=model, prompt="One, two, three,", max_tokens=4, stream=True
    )
    assert "".join(one.choices[0].text for one in pieces) == answer.choices[0].text


def test_logprobs_are_the_same_streamed_and_not(client, model):
    asked = {"model": model, "messages": QUESTION, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(max_tokens=5, **asked)
    found = []
    for event in client.chat.completions.create(max_tokens=5, stream=True, **asked):
        for choice in event.choices:
            found += choice.logprobs.content if choice.logprobs else []
    wanted = whole.choices[0].logprobs.content
    assert [one.token for one in found] == [one.token for one in wanted]
    assert all(abs(a.logprob - b.logprob) < 1e-2 for a, b in zip(found, wanted, strict=True))


def test_parse_gives_an_object(client, model):
    class City(BaseModel):
        name: Literal["Paris", "Rome", "Berlin"]
        capital: bool

    answer = client.chat.completions.parse(
        model=model, messages=QUESTION, response_format=City, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_models_are_listed_loaded_or_not(client):
    assert {"pebble", "pebble-onnx"} <= {one.id for one in client.models.list()}
    assert client.models.retrieve("pebble").id == "pebble"
    with pytest.raises(APIStatusError) as refused:
        client.models.retrieve("../../etc/passwd")
    assert refused.value.status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"messages": QUESTION, "model": "/etc/passwd"}, 404, "no model"),
        ({"messages": []}, 400, "empty list"),
        ({}, 400, "messages"),
        ([], 400, "object"),
        ({"messages": QUESTION, "temperature": -1}, 400, "temperature"),
        ({"messages": QUESTION, "stream": "yes"}, 400, "stream"),
        ({"messages": QUESTION, "stream_options": {}, "seed": "x"}, 400, "seed"),
        ({"messages": [{"role": "user", "content": "a " * 5000}]}, 400, "context"),
        (
            {
                "messages": QUESTION,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
                },
            },
            400,
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_is_wrong_is_said(client, body, status, said):
    answer = client._client.post(
        str(client.base_url) + "chat/completions", content=json.dumps(body)
    )
    assert answer.status_code == status
    error = answer.json()["error"]
    assert said in error["message"]
    assert error["code"]


def test_a_prompt_may_be_tokens_and_they_come_back(client, server, model):
    text = "One, two, three,"
    asked = {"model": model, "max_tokens": 6}
    ids = client._client.post(
        f"{server.address}/v1/tokenize", json={"model": model, "prompt": text}
    )
    tokens = ids.json()["tokens"]
    whole = client.completions.create(prompt=text, **asked).choices[0].text
    more = {"return_token_ids": True}
    found = client.completions.create(prompt=tokens, extra_body=more, **asked).choices[0]
    assert found.text == whole
    streamed = list(client.completions.create(prompt=tokens, extra_body=more, stream=True, **asked))
    assert "".join(one.choices[0].text for one in streamed) == whole
    assert [n for one in streamed for n in one.choices[0].token_ids] == found.token_ids
    for wrong in ([10**6], [-1], [1, True], [[]]):
        with pytest.raises(APIStatusError) as refused:
            client.completions.create(prompt=wrong, **asked)
        assert refused.value.status_code == 400
