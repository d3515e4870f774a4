"""Bodies of Anthropic's Messages API, without a server around them."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from app.openai.answer import Answer
from app.openai.anthropic import MessageEvents
from app.openai.tool_parser import ArgumentsDelta, CallBegin, ContentDelta
from runtimes.request import Priority, SamplingParams
from tests.app.openai.readers import message

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "cached_tokens": 5}
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"a": {}}}}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"a": 1}'},
}


def begun() -> MessageEvents:
    return MessageEvents("7", "m", 9, {})


def parsed(body: dict[str, Any]) -> Any:
    """As the `anthropic` package reads it, which takes seconds to import: other workers of a
    parallel run need not."""
    from anthropic.types import Message

    return Message.model_validate(body)


def test_a_conversation_with_tools():
    found = message(
        messages=[
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


def test_a_system_message_may_be_the_last():
    said = [{"role": "user", "content": "Rome?"}, {"role": "system", "content": "Be brief."}]
    assert message(messages=said).opening == said


def test_an_answer_is_a_message():
    answer = Answer("Hm.", finish_reason="tool_calls", tool_calls=[CALL], usage=USAGE)
    body = parsed(begun().whole(answer, None))
    assert body.stop_reason == "tool_use"
    text, used = body.content
    assert text.type == "text"
    assert used.type == "tool_use"
    assert (text.text, used.name, used.input) == ("Hm.", "weather", {"a": 1})
    usage = body.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 5, 4)
    cut = {**CALL, "function": {"name": "weather", "arguments": '{"a'}}
    answer = Answer("", finish_reason="length", tool_calls=[cut], usage=USAGE)
    body = parsed(begun().whole(answer, None))
    assert body.stop_reason == "max_tokens"
    assert body.content[0].text == 'weather{"a'  # type: ignore[union-attr]
    assert begun().whole(Answer("x", usage=USAGE), "END")["stop_reason"] == "stop_sequence"


def test_events_open_and_close_each_block():
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
