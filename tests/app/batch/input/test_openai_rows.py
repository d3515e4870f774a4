"""Lines of an OpenAI batch: what a request asks, and what of it is not supported."""

from __future__ import annotations

from typing import Any

import pytest

from app.batch.input.prompting import Prompting
from app.batch.spec import InputOptions
from app.openai.task import Embed, Task
from app.openai.validation import InputError, Problem
from runtimes.request import Priority, SamplingParams

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
JOB = SamplingParams(max_tokens=99, temperature=0.5)


def request(url: str = CHAT, **body: Any) -> dict[str, Any]:
    prompt = {"prompt": "hi"} if url == "/v1/completions" else {"messages": USER}
    whole = {"model": "any", **prompt, **body}
    return {"custom_id": "a", "method": "POST", "url": url, "body": whole}


def ask(row: dict[str, Any], **options: Any) -> Task:
    prompting = Prompting(sampling=JOB, **options)
    return prompting.task(row, prompting.endpoint(row))


def sampling(row: dict[str, Any]) -> SamplingParams:
    task = ask(row)
    assert task.sampling is not None
    return task.sampling


def problem(row: dict[str, Any]) -> Problem:
    with pytest.raises(InputError) as caught:
        ask(row)
    return caught.value.problem


def test_a_chat() -> None:
    messages = [{"role": "system", "content": "s"}, *USER]
    row = request(messages=messages)
    task = ask(row)
    assert task == Task(({"role": "system", "content": "s"},), ("hi",))


def test_a_completion() -> None:
    row = request("/v1/completions")
    assert ask(row) == Task((), ("hi",), raw=True)
    assert ask(request("/v1/completions", prompt=["hi"])) == ask(row)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"top_p": 0.5, "seed": -3, "n": 2}, {"top_p": 0.5, "seed": -3, "n": 2}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
        (
            {"presence_penalty": 1, "frequency_penalty": -0.5},
            {"presence_penalty": 1.0, "frequency_penalty": -0.5},
        ),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"logit_bias": {"7": -100, "5": 1}}, {"logit_bias": ((5, 1.0), (7, -100.0))}),
        ({"top_k": 4, "min_p": 0.1, "seed": None}, {"top_k": 4, "min_p": 0.1}),
    ],
)
def test_parameters_on_top_of_the_jobs(body: dict[str, Any], expected: dict[str, Any]) -> None:
    found = sampling(request(**body))
    assert {name: getattr(found, name) for name in expected} == expected
    untouched = {"max_tokens": 99, "temperature": 0.5, "logprobs": False, "n": 1}
    for name in untouched.keys() - expected.keys():
        assert getattr(found, name) == untouched[name]


def test_completions_have_logprobs_by_number_and_best_of() -> None:
    found = sampling(request("/v1/completions", logprobs=2, best_of=3))
    assert (found.logprobs, found.top_logprobs, found.best_of) == (True, 2, 3)


def test_what_asks_for_nothing_is_no_parameter() -> None:
    idle = {"stream": False, "tools": [], "tool_choice": "none", "user": "me", "metadata": {},
            "response_format": {"type": "text"}, "max_tokens": None}  # fmt: skip
    task = ask(request(**idle))
    assert task.sampling is None


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"stream": True}, "unsupported_parameter", "stream: true"),
        ({"tools": [{}]}, "unsupported_parameter", "tools"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"frobnicate": 1}, "unsupported_parameter", "frobnicate"),
        ({"temperature": "1"}, "wrong_type", "temperature must be a number, not a string"),
        ({"temperature": -1}, "invalid_value", "temperature"),
        ({"temperature": 10**400}, "invalid_value", "temperature"),
        ({"max_tokens": 1.5}, "wrong_type", "max_tokens must be a whole number, not 1.5"),
        ({"max_tokens": True}, "wrong_type", "not a boolean"),
        ({"max_tokens": 2**40}, "invalid_value", "max_tokens"),
        ({"seed": 2**63}, "invalid_value", "seed"),
        ({"stop": 5}, "wrong_type", "stop"),
        ({"stop": [""]}, "invalid_value", "stop"),
        ({"stop": "\ud800"}, "invalid_unicode", "stop"),
        ({"stop": ["x"] * 65}, "invalid_value", "stop"),
        ({"logit_bias": [1]}, "wrong_type", "logit_bias"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "'x'"),
        ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias.1"),
        ({"top_logprobs": 2}, "invalid_value", "logprobs: true"),
        ({"n": 65}, "invalid_value", "n must be"),
        ({"messages": "hi"}, "wrong_type", "messages"),
        ({"messages": None}, "missing_parameter", "messages"),
    ],
)
def test_refused_by_name(body: dict[str, Any], code: str, words: str) -> None:
    found = problem(request(**body))
    assert found.code == code
    assert words in found.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"custom_id": None}, "custom_id must be a text, not null"),
        ({"custom_id": 5}, "custom_id"),
        ({"custom_id": "a\ud800"}, "custom_id has a lone surrogate at character 1"),
        ({"method": "GET"}, "not 'GET'"),
        ({"url": "/v1/rerank"}, "/v1/chat/completions or /v1/completions or /v1/embeddings"),
        ({"url": "/v1/embeddings"}, "messages is not supported"),
        ({"url": []}, "not a list"),
        ({"body": "x"}, "body must be an object, not a string"),
    ],
)
def test_refused_envelopes(change: dict[str, Any], words: str) -> None:
    assert words in problem({**request(), **change}).message


def test_prompts_as_tokens_and_several_of_them() -> None:
    assert ask(request("/v1/completions", prompt=[1, 2])) == Task(raw=True, ids=(1, 2))
    several = ask(request("/v1/completions", prompt=["a", "b"], n=2, echo=True, logprobs=3))
    assert [part.turns for part in several.parts] == [("a",), ("b",)]
    for part in several.parts:
        assert part.sampling is not None
        assert (part.sampling.n, part.sampling.prompt_logprobs) == (2, 3)
    for prompt, words in (
        ([], "prompt must be"),
        (["a", []], "prompt.1 must be"),
        (["a", " "], "blank"),
        (["a"] * 257, "257 prompts"),
    ):
        assert words in problem(request("/v1/completions", prompt=prompt)).message
    refused = problem(request("/v1/completions", priority="low"))
    assert (refused.code, refused.message) == (
        "unsupported_parameter",
        "priority is not supported",
    )


def test_embeddings() -> None:
    row = {**request(), "url": "/v1/embeddings"}
    asked = ask({**row, "body": {"model": "any", "input": ["a", [1, 2]], "dimensions": 3}})
    assert [(part.turns, part.ids) for part in asked.parts] == [(("a",), ()), ((), (1, 2))]
    assert {part.embed for part in asked.parts} == {Embed(3)}
    assert problem({**row, "body": {"input": []}}).message.startswith("input must be a text")


def test_rows_that_are_no_requests() -> None:
    for row in ({"body": "text", "url": "x"}, {"body": {"messages": USER}}, {"custom_id": "a"}):
        assert problem(row).code == "missing_field"
    with_prompt = {"prompt": "x", "url": "u", "body": {}, "custom_id": "c"}
    assert ask(with_prompt) == Task((), ("x",))
    # --field says what the row is.
    assert ask(request(stream=True), rows=InputOptions(field="body.messages")) == Task((), ("hi",))


def test_a_bound_on_what_rows_ask_for() -> None:
    task = ask(request(max_tokens=50, min_tokens=20), most_tokens=8)
    assert task.sampling is not None
    assert (task.sampling.max_tokens, task.sampling.min_tokens) == (8, 8)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("HIGH", Priority.HIGH),
        (0, Priority.CRITICAL),
        (1.0, Priority.HIGH),
        ("3", Priority.LOW),
        (None, Priority.NORMAL),
    ],
)
def test_priorities(value: Any, expected: Priority) -> None:
    task = ask({"prompt": "x", "p": value}, rows=InputOptions(priority_field="p"))
    assert task.priority is expected
    with pytest.raises(InputError, match="'urgent'"):
        ask({"prompt": "x", "p": "urgent"}, rows=InputOptions(priority_field="p"))
