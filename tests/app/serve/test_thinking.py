"""Thoughts over HTTP, in every dialect, with a Pebble that thinks: apart from the answer, bounded,
and before whatever the answer has to be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError

from app.chat.remote import connect
from tests.app.serve.conftest import Running, running

QUESTIONS = ("What is the capital of France?", "How much is 4 + 5?")
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 20}},
    "required": ["answer"],
    "additionalProperties": False,
}
TOOL = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
CLOSING = "I have to answer now."


@pytest.fixture(scope="module")
def thinker(pebble_thinks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with running({"thinks": pebble_thinks}, slots=4, data=data) as found:
        yield found


def chat(thinker: Running, **more: Any) -> Any:
    asked = {"model": "thinks", "max_tokens": 200, "temperature": 0, **more}
    asked.setdefault("messages", [{"role": "user", "content": QUESTIONS[0]}])
    return thinker.client().chat.completions.create(**asked)


def test_a_thought_stands_beside_the_content_whole_and_streamed(thinker):
    answer = chat(thinker)
    message = answer.choices[0].message
    assert message.content
    assert "think>" not in message.content
    assert message.reasoning_content
    assert message.reasoning_content == message.reasoning
    details = answer.usage.completion_tokens_details
    assert 0 < details.reasoning_tokens < answer.usage.completion_tokens
    deltas = [chunk.choices[0].delta for chunk in chat(thinker, stream=True) if chunk.choices]
    thoughts = [getattr(one, "reasoning_content", None) or "" for one in deltas]
    assert "".join(thoughts) == message.reasoning_content
    assert "".join(one.content or "" for one in deltas) == message.content
    parts = zip(thoughts, deltas, strict=True)
    said = [bool(thought) for thought, one in parts if thought or one.content]
    assert said == sorted(said, reverse=True)  # all of the thought comes first


@pytest.mark.parametrize(
    "off", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
def test_it_is_turned_off(thinker, off):
    answer = chat(thinker, extra_body=off)
    message = answer.choices[0].message
    assert message.content
    assert not hasattr(message, "reasoning_content")
    assert answer.usage.completion_tokens_details is None


@pytest.mark.parametrize("name", ["think_tokens", "thinking_budget_tokens"])
def test_it_is_bounded(thinker, name):
    message = chat(thinker, extra_body={name: 3}).choices[0].message
    assert message.reasoning_content.endswith(CLOSING)
    assert len(message.reasoning_content) <= len(CLOSING) + 2 + 3 * 12
    assert message.content
    free = chat(thinker, extra_body={name: -1}).choices[0].message
    assert free.reasoning_content == chat(thinker).choices[0].message.reasoning_content


def test_where_the_answer_ended_is_told(thinker):
    choice = chat(thinker, max_tokens=2).choices[0]
    assert (choice.finish_reason, choice.finish_details) == ("length", "within the reasoning")
    assert choice.message.content == ""
    *_, last, _ = chat(thinker, max_tokens=2, stream=True, stream_options={"include_usage": True})
    assert last.choices[0].finish_details == "within the reasoning"


def test_log_probabilities_are_of_the_answer(thinker):
    choice = chat(thinker, logprobs=True, top_logprobs=2).choices[0]
    assert "".join(one.token for one in choice.logprobs.content).strip() == choice.message.content


def test_an_earlier_thought_is_the_templates(thinker):
    """This template knows no thoughts of earlier turns: they change no token."""
    said = [
        {"role": "user", "content": QUESTIONS[0]},
        {"role": "assistant", "content": "Paris.", "reasoning_content": "It is Paris, I think."},
        {"role": "user", "content": QUESTIONS[1]},
    ]
    plain = [{k: v for k, v in one.items() if k != "reasoning_content"} for one in said]
    with_thought, without = chat(thinker, messages=said), chat(thinker, messages=plain)
    assert with_thought.usage.prompt_tokens == without.usage.prompt_tokens


@pytest.mark.parametrize(
    ("wanted", "budget"),
    [("schema", None), ("regex", 20), ("tool", 0)],
)
def test_every_answer_is_valid(thinker, wanted, budget):
    more: dict[str, Any] = {} if budget is None else {"think_tokens": budget}
    asked: dict[str, Any] = {}
    match wanted:
        case "schema":
            form = {"name": "a", "schema": SCHEMA, "strict": True}
            asked["response_format"] = {"type": "json_schema", "json_schema": form}
        case "regex":
            more["structured_outputs"] = {"regex": "[A-Z][a-z]{2,9}"}
        case "tool":
            function = {"name": "weather", "parameters": TOOL, "strict": True}
            asked |= {"tools": [{"type": "function", "function": function}]}
            asked |= {"tool_choice": "required", "parallel_tool_calls": False}
    messages = [{"role": "user", "content": QUESTIONS[1]}]
    answer = chat(thinker, messages=messages, extra_body=more, max_tokens=400, **asked)
    message = answer.choices[0].message
    check(wanted, message.content or "", [c.function for c in message.tool_calls or ()])
    thought = getattr(message, "reasoning_content", None) or ""
    assert "think>" not in thought
    if budget is not None:
        tokens = answer.usage.completion_tokens_details
        most = budget + 45  # the closing sentence and tags, byte for byte at the worst
        assert (tokens.reasoning_tokens if tokens else 0) <= most


def check(wanted: str, text: str, calls: list[Any]) -> None:
    assert "think>" not in text
    match wanted:
        case "schema":
            assert set(json.loads(text)) == {"answer"}
        case "regex":
            assert re.fullmatch("[A-Z][a-z]{2,9}", text)
        case "tool":
            assert [call.name for call in calls] == ["weather"] * len(calls)
            assert calls
            assert all(set(json.loads(call.arguments)) == {"city"} for call in calls)


def test_anthropics_messages_have_blocks(thinker):
    from anthropic import Anthropic

    client = Anthropic(base_url=thinker.address, api_key="none", max_retries=0)
    asked: dict[str, Any] = {
        "model": "thinks",
        "messages": [{"role": "user", "content": QUESTIONS[0]}],
        "max_tokens": 200,
    }
    answer = client.messages.create(**asked)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message().content
    assert [one.to_dict() for one in streamed] == [one.to_dict() for one in answer.content]
    off = client.messages.create(**asked, thinking={"type": "disabled"})
    assert [block.type for block in off.content] == ["text"]
    body = {"thinking": {"type": "enabled", "budget_tokens": 3}}
    for extra in (body, {"think_tokens": 3}):
        bounded = client.messages.create(**asked, extra_body=extra)
        assert bounded.content[0].thinking.endswith(CLOSING)


def test_responses_have_items(thinker):
    asked: dict[str, Any] = {"model": "thinks", "input": QUESTIONS[0], "temperature": 0}
    client = thinker.client()
    answer = client.responses.create(**asked)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    thought = answer.output[0].content[0].text
    streamed = "".join(
        event.delta
        for event in client.responses.create(**asked, stream=True)
        if event.type == "response.reasoning_text.delta"
    )
    assert streamed == thought
    bounded = client.responses.create(**asked, extra_body={"think_tokens": 3})
    assert bounded.output[0].content[0].text.endswith(CLOSING)
    with pytest.raises(BadRequestError, match="reasoning"):
        client.responses.create(**asked, extra_body={"reasoning": ""})
    off = client.responses.create(**asked, reasoning={"effort": "none"})
    assert [item.type for item in off.output] == ["message"]
    said = [{"role": "user", "content": QUESTIONS[0]}, *answer.output]
    said.append({"role": "user", "content": QUESTIONS[1]})
    assert client.responses.create(model="thinks", input=said).output


def test_a_text_completion_tells_a_thought_where_it_is_asked_to(thinker: Running) -> None:
    """For tokens and for text, whole and streamed; without the word for it, nothing is told."""
    engine, client = connect(thinker.address), thinker.client()
    ids = engine.encode_chat([{"role": "user", "content": QUESTIONS[0]}])
    asked = {"model": "thinks", "max_tokens": 200, "temperature": 0, "prompt": ids}
    told, by_chat = {"thinking_at": "prompt"}, chat(thinker).choices[0].message
    whole = client.completions.create(**asked, extra_body=told).choices[0]
    assert (whole.reasoning_content, whole.text) == (by_chat.reasoning_content, by_chat.content)
    for more in ({}, {"return_token_ids": True}):
        thought = text = ""
        for event in client.completions.create(**asked, stream=True, extra_body=told | more):
            thought += getattr(event.choices[0], "reasoning_content", "")
            text += event.choices[0].text
        assert (thought, text) == (whole.reasoning_content, whole.text)
    plain = client.completions.create(**asked, extra_body={"think_tokens": 3}).choices[0]
    assert "</think>" in plain.text
    short = client.completions.create(**asked, extra_body=told | {"think_tokens": 3}).choices[0]
    assert short.reasoning_content.endswith(CLOSING)
    for place, thinks in (("thought", True), ("answer", False)):
        asked["prompt"] = "The capital of France is"
        found = client.completions.create(**asked, extra_body={"thinking_at": place}).choices[0]
        assert hasattr(found, "reasoning_content") is thinks
    with pytest.raises(BadRequestError, match="thinking_at must be one of prompt, thought, answer"):
        client.completions.create(**asked, extra_body={"thinking_at": "here"})
