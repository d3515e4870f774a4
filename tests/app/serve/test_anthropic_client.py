"""The `anthropic` package's own calls against a server on both runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from tests.app.serve.conftest import Running

# Importing it takes seconds, which other workers of a parallel run need not.
if TYPE_CHECKING:
    from anthropic import Anthropic

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city", "unit"],
    },
}


@pytest.fixture(params=["pebble", "pebble-onnx"])
def model(request) -> str:
    return request.param


@pytest.fixture
def client(server: Running) -> Anthropic:
    from anthropic import Anthropic

    return Anthropic(base_url=server.address, api_key="none", max_retries=0)


def test_a_message_has_text_and_counts(client, model):
    asked = {"model": model, "messages": QUESTION, "system": "Answer."}
    answer = client.messages.create(max_tokens=40, **asked)
    assert "Paris" in answer.content[0].text
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    usage = answer.usage
    counted = client.messages.count_tokens(**asked).input_tokens
    assert usage.input_tokens + usage.cache_read_input_tokens == counted
    assert client.messages.create(max_tokens=1, **asked).stop_reason == "max_tokens"


def test_an_answer_goes_on_from_the_last_message(client, model):
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of France"}]
    answer = client.messages.create(model=model, messages=begun, max_tokens=40)
    assert answer.content[0].text == " is Paris."


def test_a_stop_sequence_is_told(client, model):
    answer = client.messages.create(
        model=model, messages=QUESTION, max_tokens=40, stop_sequences=["x", "Par"]
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Par")


def test_a_stream_is_the_same_message(client, model):
    asked = {"model": model, "messages": QUESTION, "max_tokens": 40}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_tool_is_used_and_its_result_read(client, model):
    asked = {
        "model": model,
        "max_tokens": 200,
        "tools": [WEATHER],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "extra_body": {"temperature": 0},
    }
    answer = client.messages.create(messages=QUESTION, **asked)
    assert answer.stop_reason == "tool_use"
    [used] = answer.content
    assert (used.type, used.name) == ("tool_use", "weather")
    assert used.input["unit"] in ("C", "F")
    assert len(used.input["city"]) <= 12
    with client.messages.stream(messages=QUESTION, **asked) as stream:
        [streamed] = stream.get_final_message().content
    assert streamed.input.keys() == {"city", "unit"}
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "sunny"}
    more = [
        *QUESTION,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    again = client.messages.create(messages=more, **{**asked, "tool_choice": {"type": "auto"}})
    assert again.stop_reason


def test_parse_gives_an_object(client, model):
    class City(BaseModel):
        capital: bool

    answer = client.messages.parse(
        model=model, messages=QUESTION, max_tokens=100, output_format=City
    )
    assert isinstance(answer.parsed_output, City)


def test_what_is_wrong_is_said_in_its_form(client, model):
    from anthropic import BadRequestError, NotFoundError

    with pytest.raises(BadRequestError) as refused:
        client.messages.create(model=model, messages=[], max_tokens=5)
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(NotFoundError) as unknown:
        client.messages.create(model="claude", messages=QUESTION, max_tokens=5)
    assert unknown.value.body["error"]["type"] == "not_found_error"
