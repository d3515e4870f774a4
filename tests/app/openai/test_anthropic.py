"""Bodies of Anthropic's Messages API, without a server around them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from app.openai.answer import Answer
from app.openai.anthropic import MessageEvents, messages_task
from app.openai.tool_parser import ArgumentsDelta, CallBegin, ContentDelta
from app.openai.validation import InputError
from runtimes.request import Priority, SamplingParams

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "cached_tokens": 5}
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"a": {}}}}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"a": 1}'},
}


def task(messages: Any = "hi", **body: Any):
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return messages_task({"messages": said, "max_tokens": 5, **body}, SamplingParams())


def begun() -> MessageEvents:
    return MessageEvents("7", "m", 9, {})


def message(body: dict[str, Any]) -> Any:
    """As the `anthropic` package reads it, which takes seconds to import: other workers of a
    parallel run need not."""
    from anthropic.types import Message

    return Message.model_validate(body)


def test_a_conversation_with_tools() -> None:
    found = task(
        [
            {"role": "user", "content": "How is"},
            {"role": "user", "content": [{"type": "text", "text": "Rome?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "sunny"}],
                    },
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        stop_sequences=["END"],
        top_k=4,
        seed=7,
        priority="low",
        tools=[WEATHER],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    call = {
        "id": "t1",
        "type": "function",
        "function": {"name": "weather", "arguments": {"a": 1}},
    }
    assert found.opening == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "How is\n\nRome?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [call],
            "reasoning_content": "hm",
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "t1"},
        {"role": "user", "content": "And now?"},
    ]
    assert found.sampling == SamplingParams(max_tokens=5, top_k=4, seed=7, stop=("END",))
    assert found.priority is Priority.LOW
    assert found.tools is not None
    assert (found.tools.required, found.tools.parallel) == (True, False)
    assert found.tools.functions[0]["parameters"] == WEATHER["input_schema"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages.0.content is blank"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages.0.content.0.type: 'image'",
        ),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "1", "name": "x", "input": {}}]}]},
         "what the last message's calls have returned is missing"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}],
          "tool_choice": {"type": "tool", "name": "bash"}}, "names 'bash', a tool that a provider"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}},
         "asks for a call, and no tool is left"),
        ({"tools": [{"type": 5, "name": "bash"}]}, "tools.0.type must be custom"),
        ({"tools": [{"name": "x", "input_schema": {"properties": {"a": {"type": "y"}}}}]},
         "tools.0.input_schema: the JSON schema cannot be used: at #/properties/a"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [WEATHER]}, "names 'x'"),
        ({"n": 2}, "n is not supported"),
        ({"logprobs": True}, "logprobs is not supported"),
        ({"output_format": {}}, "output_format is not supported"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"tools": [WEATHER], "structured_outputs": {"regex": "a"}}, "tools need an answer"),
        ({"system": 5}, "system must be a text"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        messages_task(
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **body},
            SamplingParams(),
        )
    assert said in str(caught.value)


def test_an_answer_is_a_message() -> None:
    answer = Answer("Hm.", finish_reason="tool_calls", tool_calls=[CALL], usage=USAGE)
    body = message(begun().whole(answer, None))
    assert body.stop_reason == "tool_use"
    text, used = body.content
    assert text.type == "text"
    assert used.type == "tool_use"
    assert (text.text, used.name, used.input) == ("Hm.", "weather", {"a": 1})
    usage = body.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 5, 4)
    cut = {**CALL, "function": {"name": "weather", "arguments": '{"a'}}
    answer = Answer("", finish_reason="length", tool_calls=[cut], usage=USAGE)
    body = message(begun().whole(answer, None))
    assert body.stop_reason == "max_tokens"
    assert body.content[0].text == 'weather{"a'  # type: ignore[union-attr]
    assert begun().whole(Answer("x", usage=USAGE), "END")["stop_reason"] == "stop_sequence"


def test_events_open_and_close_each_block() -> None:
    events = begun()
    deltas = [
        ContentDelta("Hm"),
        ContentDelta("."),
        CallBegin(0, "call_1", "weather"),
        ArgumentsDelta(0, '{"a"'),
        ArgumentsDelta(0, ": 1}"),
        CallBegin(1, "call_2", "weather"),
    ]
    found = [
        *events.begin(),
        *(event for delta in deltas for event in events.add(delta)),
        *events.end(Answer("Hm.", finish_reason="tool_calls", usage=USAGE), None),
    ]
    from anthropic.types import RawMessageStreamEvent

    kind: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for event in found:
        if event["type"] != "ping":
            kind.validate_python(event)
    assert [(event["type"], event.get("index")) for event in found] == [
        ("message_start", None),
        ("ping", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_stop", 2),
        ("message_delta", None),
        ("message_stop", None),
    ]
