"""The `openai` package's own calls against a server: chats, completions and responses."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from openai import APIStatusError, OpenAI
from pydantic import BaseModel

from tests.app.serve.conftest import QUESTION

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "parameters": PARAMETERS}
TIME = {"type": "function", "function": {"name": "time"}}
ASKED: dict[str, Any] = {
    "messages": QUESTION,
    "tools": [{"type": "function", "function": WEATHER}, TIME],
    "parallel_tool_calls": False,  # a toy that may go on calling does so
    "temperature": 0,
    "max_tokens": 150,
}


@pytest.fixture
def ask(client: OpenAI) -> Any:
    """Chat completions."""

    def create(**body: Any) -> Any:
        asked = {"model": "pebble", "messages": QUESTION, **body}
        return client.chat.completions.create(**asked)

    return create


def texts(events: Any, count: int = 1) -> list[str]:
    """What a stream says, by sample."""
    found = [""] * count
    for event in events:
        for choice in event.choices:
            found[choice.index] += choice.delta.content or ""
    return found


@pytest.mark.parametrize("model", ["pebble", "pebble-onnx"])
def test_a_chat_is_the_same_whole_and_streamed(ask, model):
    asked = {"model": model, "logprobs": True, "top_logprobs": 2}
    whole = ask(**asked)
    [choice] = whole.choices
    assert "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.model_extra["timings"]["ttft_s"] > 0
    assert whole.model_extra["context"]["used"] == whole.usage.total_tokens
    events = list(ask(stream=True, stream_options={"include_usage": True}, **asked))
    assert len(events) > 3
    assert texts(events) == [choice.message.content]
    choices = [one for event in events for one in event.choices]
    assert choices[-1].finish_reason == "stop"
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens
    found = [token for one in choices if one.logprobs for token in one.logprobs.content]
    wanted = choice.logprobs.content
    assert [one.token for one in found] == [one.token for one in wanted]
    assert all(abs(a.logprob - b.logprob) < 1e-2 for a, b in zip(found, wanted, strict=True))
    asked = {"model": model, "n": 3, "seed": 7, "max_tokens": 8}
    assert texts(ask(stream=True, temperature=0, **asked), 3) == [
        one.message.content for one in ask(temperature=0, **asked).choices
    ]
    assert len(set(texts(ask(stream=True, temperature=3.0, **asked), 3))) > 1


def test_a_call_follows_its_schema_and_its_result_is_read(ask, client):
    one = {"type": "function", "function": {"name": "weather"}}
    answer = ask(tool_choice=one, seed=1, **ASKED)
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    [call] = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, arguments.keys()) == ("weather", {"city", "unit"})
    assert len(arguments["city"]) <= 12
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    again = ask(**{**ASKED, "messages": [*QUESTION, choice.message, result]})
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens
    for wanted in ("auto", "none"):  # without a call the text is told
        [choice] = ask(tool_choice=wanted, **ASKED).choices
        assert choice.message.content
        assert choice.message.tool_calls is None


def test_a_stream_of_calls_is_the_same_calls(client):
    asked = {**ASKED, "model": "pebble", "tool_choice": "required", "seed": 2, "n": 2}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as events:
        count = sum(1 for _ in events)
        streamed = events.get_final_completion()
    assert count > 10
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        assert one.finish_reason == other.finish_reason == "tool_calls"
        assert other.message.content in (None, "")
        calls, others = (
            [(call.function.name, call.function.arguments) for call in of.message.tool_calls]
            for of in (one, other)
        )
        assert calls == others


def test_an_answer_goes_on_from_the_last_message(ask):
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of"}]
    text = ask(messages=begun).choices[0].message.content
    assert "The capital of" + text == ask().choices[0].message.content
    assert texts(ask(messages=begun, stream=True)) == [text]
    for form in ({"response_format": {"type": "json_object"}}, {"tools": [TIME]}):
        with pytest.raises(APIStatusError, match="neither tools nor a form"):
            ask(messages=begun, **form)


class City(BaseModel):
    name: Literal["Paris", "Rome", "Berlin"]
    capital: bool


def test_parse_gives_an_object(client):
    asked: dict[str, Any] = {"model": "pebble"}
    chats, responses = client.chat.completions, client.responses
    answer = chats.parse(messages=QUESTION, response_format=City, max_tokens=200, **asked)
    assert isinstance(answer.choices[0].message.parsed, City)
    said = responses.parse(input=QUESTION, text_format=City, max_output_tokens=200, **asked)
    assert isinstance(said.output_parsed, City)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_any_text_comes_through_in_an_event(server, path):
    """Events are put together of what is the same in all of them and the text."""
    text = 'say "\\n"\n\té%s{0}'
    body = {"n": 2, "max_tokens": 60, "stream": True, "structured_outputs": {"choice": [text]}}
    body |= {"prompt": "Say"} if path == "completions" else {"messages": QUESTION}
    answer = server.begin(body, f"/v1/{path}").getresponse()
    *events, done = answer.read().decode().strip().split("\n\n")
    assert done == "data: [DONE]"
    said, heads = ["", ""], []
    for event in (json.loads(one.removeprefix("data: ")) for one in events):
        (choice,) = event.pop("choices")
        heads.append(event)
        piece = choice.pop("text") if path == "completions" else choice.pop("delta").get("content")
        said[choice["index"]] += piece or ""
        assert choice.keys() == {"index", "logprobs", "finish_reason"}
    assert said == [text, text]
    assert len(heads) > 4
    assert heads == [heads[0]] * len(heads)


def test_completions_continue_a_text_or_tokens(client, server):
    asked: dict[str, Any] = {"model": "pebble", "max_tokens": 6}
    prompt = "One, two, three,"
    tokens = server.ask({"model": "pebble", "prompt": prompt}, "/v1/tokenize")[1]["tokens"]
    answer = client.completions.create(prompt=prompt, **asked)
    text = answer.choices[0].text
    assert text
    assert answer.usage.completion_tokens <= 6
    pieces = client.completions.create(prompt=prompt, stream=True, **asked)
    assert "".join(one.choices[0].text for one in pieces) == text
    more = {"return_token_ids": True}
    found = client.completions.create(prompt=tokens, extra_body=more, **asked).choices[0]
    assert found.text == text
    streamed = list(client.completions.create(prompt=tokens, extra_body=more, stream=True, **asked))
    assert "".join(one.choices[0].text for one in streamed) == text
    assert [n for one in streamed for n in one.choices[0].token_ids] == found.token_ids
    several = server.ask({"prompt": prompt, "num_samples": 2, "max_tokens": 6}, "/predict")[1]
    assert [choice["text"] for choice in several["choices"]] == [text, text]


def test_a_response_has_text_and_counts(client):
    create = client.responses.create
    question = QUESTION[0]["content"]
    include: Any = ["message.output_text.logprobs"]
    more: dict[str, Any] = {"include": include, "top_logprobs": 2, "instructions": "Answer."}
    answer = create(model="pebble", input=question, store=True, metadata={"a": "b"}, **more)
    assert "Paris" in answer.output_text
    assert (answer.status, answer.store, answer.metadata) == ("completed", False, {"a": "b"})
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert len(answer.output[0].content[0].logprobs[0].top_logprobs) == 2
    short = create(model="pebble", input=question, max_output_tokens=1)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    whole = create(model="pebble", input=question)
    with client.responses.stream(model="pebble", input=question) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == whole.output_text
    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_response_calls_a_function_and_reads_its_result(client):
    asked: dict[str, Any] = {
        "model": "pebble",
        "tools": [{"type": "function", "strict": True, **WEATHER}],
        "temperature": 0,
        "max_output_tokens": 200,
        "parallel_tool_calls": False,
    }
    must = {"tool_choice": {"type": "function", "name": "weather"}}
    said: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}]
    answer = client.responses.create(input=said, **must, **asked)
    with client.responses.stream(input=said, **must, **asked) as stream:
        streamed = stream.get_final_response().output
    for output in (answer.output, streamed):
        [call] = output
        assert (call.type, call.name) == ("function_call", "weather")
        assert json.loads(call.arguments).keys() == {"city", "unit"}
    said += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    again = client.responses.create(input=said, **asked)
    assert again.usage.input_tokens > answer.usage.input_tokens


def test_models_are_listed_loaded_or_not(client, server):
    client.completions.create(model="pebble", prompt="x", max_tokens=1)
    assert server.get("/v1/stats")[1]["models"]["pebble"]["slots"] == 4
    assert {"pebble", "pebble-onnx"} <= {one.id for one in client.models.list()}
    assert client.models.retrieve("pebble").id == "pebble"
    with pytest.raises(APIStatusError) as refused:
        client.models.retrieve("../../etc/passwd")
    assert refused.value.status_code == 404


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "/etc/passwd"}, 404, "no model"),
        ({"messages": []}, 400, "empty list"),
        ({"stream": "yes"}, 400, "stream"),
        ({"stream_options": {}, "seed": "x"}, 400, "seed"),
        ({"messages": [{"role": "user", "content": "a " * 5000}]}, 400, "context"),
        ({"response_format": SCHEMA}, 400, "response_format.json_schema.schema"),
    ],
)
def test_what_is_wrong_is_said(server, body, status, said):
    found, answer = server.ask({"messages": QUESTION, **body})
    assert found == status
    assert said in answer["error"]["message"]
    assert answer["error"]["code"]
