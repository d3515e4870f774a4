"""Tools by the `openai` package's own calls, on both runtimes."""

from __future__ import annotations

import json

import pytest
from openai import BadRequestError, OpenAI

from tests.app.serve.conftest import Running

QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city", "unit"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
ASKED = {
    "messages": [QUESTION],
    "tools": [WEATHER, TIME],
    "parallel_tool_calls": False,  # a toy that may go on calling does so
    "temperature": 0,
    "max_tokens": 150,
}
ONE = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(params=["pebble", "pebble-onnx"])
def model(request) -> str:
    return request.param


@pytest.fixture
def client(server: Running) -> OpenAI:
    return server.client()


def test_a_call_follows_its_schema_and_its_result_is_read(client, model):
    answer = client.chat.completions.create(model=model, tool_choice=ONE, seed=1, **ASKED)
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        assert call.function.name == "weather"
        arguments = json.loads(call.function.arguments)
        assert arguments.keys() == {"city", "unit"}
        assert len(arguments["city"]) <= 12
        assert arguments["unit"] in ("C", "F")
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        for call in choice.message.tool_calls
    ]
    again = client.chat.completions.create(
        model=model, **{**ASKED, "messages": [QUESTION, choice.message, *results]}
    )
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens


def test_a_stream_of_calls_is_the_same_calls(client, model):
    asked = {**ASKED, "model": model, "tool_choice": "required", "seed": 2, "n": 2}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as events:
        count = sum(1 for _ in events)
        streamed = events.get_final_completion()
    assert count > 10
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        assert one.finish_reason == other.finish_reason == "tool_calls"
        assert other.message.content in (None, "")
        calls = [call.function for call in one.message.tool_calls]
        others = [call.function for call in other.message.tool_calls]
        assert [(c.name, c.arguments) for c in calls] == [(c.name, c.arguments) for c in others]


def test_without_a_call_the_text_is_told(client, model):
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(
            model=model, tool_choice=choice, **{**ASKED, "temperature": 0}
        )
        assert answer.choices[0].message.content
        assert answer.choices[0].message.tool_calls is None


def test_a_schema_that_cannot_be_compiled_is_refused_by_its_path(client, model):
    bad = {"name": "bad", "parameters": {"type": "object", "properties": {"a": {"type": "odd"}}}}
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(
            model=model,
            messages=[QUESTION],
            tools=[WEATHER, {"type": "function", "function": bad}],
        )
    assert "tools.1.function.parameters" in refused.value.message
    assert "#/properties/a" in refused.value.message
