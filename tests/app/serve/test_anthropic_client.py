"""The `anthropic` package's own calls against a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from tests.app.serve.conftest import QUESTION, Running
from tests.app.serve.test_openai_client import PARAMETERS

# Importing it takes seconds, which other workers of a parallel run need not.
if TYPE_CHECKING:
    from anthropic import Anthropic

ASKED: dict[str, Any] = {"model": "pebble", "messages": QUESTION, "max_tokens": 40}


@pytest.fixture
def client(server: Running) -> Anthropic:
    from anthropic import Anthropic

    return Anthropic(base_url=server.address, api_key="none", max_retries=0)


def test_a_message_has_text_and_counts_whole_and_streamed(client):
    answer = client.messages.create(system="Answer.", **ASKED)
    assert "Paris" in answer.content[0].text
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    usage = answer.usage
    counted = client.messages.count_tokens(model="pebble", messages=QUESTION, system="Answer.")
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    assert client.messages.create(**{**ASKED, "max_tokens": 1}).stop_reason == "max_tokens"
    stopped = client.messages.create(stop_sequences=["x", "Par"], **ASKED)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Par")
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of France"}]
    assert client.messages.create(**{**ASKED, "messages": begun}).content[0].text == " is Paris."
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_tool_is_used_and_its_result_read(client):
    asked = {
        **ASKED,
        "max_tokens": 200,
        "tools": [{"name": "weather", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "extra_body": {"temperature": 0},
    }
    answer = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for one in (answer, streamed):
        [used] = one.content
        assert (one.stop_reason, used.type, used.name) == ("tool_use", "tool_use", "weather")
        assert used.input.keys() == {"city", "unit"}
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "sunny"}
    asked["messages"] = [
        *QUESTION,
        {"role": "assistant", "content": streamed.content},
        {"role": "user", "content": [result]},
    ]
    assert client.messages.create(**{**asked, "tool_choice": {"type": "auto"}}).stop_reason


def test_parse_gives_an_object(client):
    class City(BaseModel):
        capital: bool

    answer = client.messages.parse(**{**ASKED, "max_tokens": 100}, output_format=City)
    assert isinstance(answer.parsed_output, City)


def test_what_is_wrong_is_said_in_its_form(client):
    from anthropic import APIStatusError

    for change, kind in (
        ({"messages": []}, "invalid_request_error"),
        ({"model": "claude"}, "not_found_error"),
    ):
        with pytest.raises(APIStatusError) as refused:
            client.messages.create(**{**ASKED, **change})
        assert refused.value.body["type"] == "error"
        assert refused.value.body["error"]["type"] == kind
