"""A body in and a body out, as a server does it: without a batch line around them."""

from __future__ import annotations

import pytest

from app.openai.answer import Answer, answer_of, failure_of
from app.openai.request import body_task
from app.openai.response import answer_body, error_body, status_of
from app.openai.validation import InputError, Problem
from runtimes.request import Completion, FinishReason, Priority, SamplingParams, Timings, Usage

TIMES = Timings(0.1, 0.2, 0.3, 0.4, 0.5, 3, 2)


def completion(text: str, cached: int = 0) -> Completion:
    usage = Usage(3, 2, cached)
    return Completion("r", text, (1, 2), FinishReason.STOP, usage, TIMES)


def test_a_body_becomes_a_task_and_its_answer_a_body():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    task = body_task({"messages": messages, "temperature": 1}, "chat", SamplingParams(top_k=3))
    assert (task.history, task.turns, task.raw) == ((messages[0],), ("hi",), False)
    assert task.sampling == SamplingParams(top_k=3, temperature=1.0)
    body = answer_body(answer_of([completion("hello", cached=1)]), "chat", "7", "m")
    assert (body["id"], body["model"]) == ("chatcmpl-7", "m")
    assert body["choices"][0]["message"]["content"] == "hello"
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_what_is_wrong_becomes_an_error_body():
    with pytest.raises(InputError) as caught:
        body_task({"messages": [], "stream": True}, "chat", SamplingParams())
    status = status_of(caught.value.problem)
    body = error_body(status, caught.value.problem)
    assert (status, body["error"]["code"]) == (400, "unsupported_parameter")
    assert status_of(Problem("worker_crash", "it died")) == 500


def test_an_answer_is_read_back_as_it_was_written():
    several = answer_of([completion("one"), completion("two", cached=2)])
    assert several.responses == ["one", "two"]
    assert several.usage is not None
    assert (several.usage["prompt_tokens"], several.usage["cached_tokens"]) == (6, 2)
    failed = failure_of(Problem("timeout", "late"), [completion("one")], "begun")
    for answer in (several, failed):
        assert Answer.from_json(answer.to_json()) == answer
    assert list(failed.to_json()) == ["error", "responses", "partial"]
    assert list(several.to_json())[:3] == ["response", "responses", "finish_reason"]
    # An older journal lacks some, a newer one may have more.
    assert Answer.from_json({"response": "x", "new": 1}) == Answer("x")
    assert several.lasting().timings is None
    assert several.lasting().usage == {
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "total_tokens": 10,
    }


def test_a_server_takes_what_a_batch_has_by_itself():
    messages = [{"role": "user", "content": "hi"}]
    for given, wanted in (("high", Priority.HIGH), (3, Priority.LOW), (None, Priority.NORMAL)):
        body = {"messages": messages, "priority": given, "reproducible": True}
        task = body_task(body, "chat", SamplingParams(), served=True)
        assert (task.priority, task.reproducible) == (wanted, True)
    for body in ({"priority": "first"}, {"reproducible": 1}):
        with pytest.raises(InputError, match=next(iter(body))):
            body_task({"messages": messages, **body}, "chat", SamplingParams(), served=True)
    with pytest.raises(InputError, match="priority is not supported"):
        body_task({"messages": messages, "priority": 1}, "chat", SamplingParams())


def test_what_clients_send_beside_is_read_or_ignored():
    messages = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind"}],
        },
        {"role": "user", "content": "hi", "name": "Ana"},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        {"role": "user", "content": "please"},
    ]
    body = {
        "messages": messages,
        "reasoning_effort": "low",
        "verbosity": "low",
        "prediction": {"type": "content", "content": "x"},
        "service_tier": "auto",
        "function_call": "none",
        "modalities": ["text"],
    }
    task = body_task(body, "chat", SamplingParams())
    assert task.ignored == ()
    assert [m["content"] for m in task.opening] == ["Be kind", "hi", "No.", "Never.", "please"]
    searching = body_task({**body, "web_search_options": {}}, "chat", SamplingParams())
    assert searching.ignored == ("web_search_options",)
    for name in ("audio", "function_call", "modalities"):
        with pytest.raises(InputError, match=name):
            body_task({"messages": messages, name: {"a": 1}}, "chat", SamplingParams())
