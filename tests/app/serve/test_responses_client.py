"""The Responses API by the `openai` package's own calls, on both runtimes."""

from __future__ import annotations

import json

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from tests.app.serve.conftest import Running

QUESTION = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


@pytest.fixture(params=["pebble", "pebble-onnx"])
def model(request) -> str:
    return request.param


@pytest.fixture
def client(server: Running) -> OpenAI:
    return server.client()


def test_a_response_has_text_and_counts(client, model):
    answer = client.responses.create(
        model=model,
        input=QUESTION,
        instructions="Answer.",
        store=True,
        metadata={"a": "b"},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert "Paris" in answer.output_text
    assert (answer.status, answer.store, answer.metadata) == ("completed", False, {"a": "b"})
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    logprobs = answer.output[0].content[0].logprobs
    assert len(logprobs[0].top_logprobs) == 2
    short = client.responses.create(model=model, input=QUESTION, max_output_tokens=1)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_stream_is_the_same_response(client, model):
    whole = client.responses.create(model=model, input=QUESTION)
    with client.responses.stream(model=model, input=QUESTION) as stream:
        numbers, text = [], ""
        for event in stream:
            numbers.append(event.sequence_number)
            text += event.delta if event.type == "response.output_text.delta" else ""
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text
    assert numbers == list(range(len(numbers)))
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_function_is_called_and_its_result_read(client, model):
    asked = {
        "model": model,
        "tools": [WEATHER],
        "temperature": 0,
        "max_output_tokens": 200,
        "parallel_tool_calls": False,
    }
    said = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    must = {"type": "function", "name": "weather"}
    answer = client.responses.create(input=said, tool_choice=must, **asked)
    [call] = answer.output
    assert (call.type, call.name) == ("function_call", "weather")
    assert json.loads(call.arguments).keys() == {"city", "unit"}
    with client.responses.stream(input=said, tool_choice=must, **asked) as stream:
        [streamed] = stream.get_final_response().output
    assert json.loads(streamed.arguments).keys() == {"city", "unit"}
    said += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    again = client.responses.create(input=said, **asked)
    assert again.usage.input_tokens > answer.usage.input_tokens


def test_parse_gives_an_object(client, model):
    class City(BaseModel):
        capital: bool

    answer = client.responses.parse(
        model=model, input=QUESTION, text_format=City, max_output_tokens=100
    )
    assert isinstance(answer.output_parsed, City)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported: answers are"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
         "names 'web_search', a tool that a provider runs"),
        ({"extra_body": {"conversation": "c"}}, "conversation is not supported: answers are"),
        ({"extra_body": {"n": 2}}, "n is not supported"),
        ({"tools": [{**WEATHER, "parameters": {"properties": {"a": {"type": "x"}}}}]},
         "tools.0.parameters: the JSON schema cannot be used: at #/properties/a"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input.0.content.0.type: 'input_image'"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"input": []}, "empty list"),
        ({"temperature": 3.5e9}, "temperature"),
        ({"text": {"format": {"type": "odd"}}}, "text"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(client, body, said):
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(**{"model": "pebble", "input": QUESTION, **body})
    assert said in refused.value.message
