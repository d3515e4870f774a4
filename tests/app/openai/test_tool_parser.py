"""Texts of answers, cut in every way, become text and calls."""

from __future__ import annotations

import pytest

from app.openai.answer import joined
from app.openai.tool_forms import form_of
from app.openai.tool_parser import ToolParser

HERMES = form_of(None)
LLAMA = form_of(
    "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}"
    """{# '{"name": ' '"parameters": ' #}"""
)
MISTRAL = form_of("{{ tools }}{# [TOOL_CALLS] [ #}")
TEKKEN = form_of("{{ tools }}{# [TOOL_CALLS] [ARGS] #}")
NAMES = ("weather", "weather.now", "time")


def call(name: str, arguments: str) -> tuple[str, str]:
    return name, arguments


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ODD = '{"a": "}\\"{</tool_call>", "b": [{"c": {}}], "d": "\\\\"}'


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (HERMES, "", "", []),
        (HERMES, "Hello, you.\n", "Hello, you.\n", []),
        (HERMES, hermes("time", "{}"), "", [("time", "{}")]),
        (HERMES, "Let me see.\n\n" + hermes("weather", ODD), "Let me see.", [("weather", ODD)]),
        (
            HERMES,
            hermes("weather", "{}") + "\n" + hermes("weather.now", '{"x": 1}'),
            "",
            [("weather", "{}"), ("weather.now", '{"x": 1}')],
        ),
        (
            HERMES,
            '<tool_call>{"name":"time","arguments":{ }}</tool_call>\n',
            "",
            [("time", "{ }")],
        ),
        # What is no call stays text.
        (HERMES, hermes("other", "{}"), hermes("other", "{}"), []),
        (HERMES, hermes("time", "[1]"), hermes("time", "[1]"), []),
        (HERMES, "a < b <tool> <tool_call> c", "a < b <tool> <tool_call> c", []),
        (HERMES, hermes("time", "{}") + " done", " done", [("time", "{}")]),
        (
            HERMES,
            "x" + hermes("time", "{}") + hermes("bad", "{}"),
            "x" + hermes("bad", "{}"),
            [("time", "{}")],
        ),
        # Cut off
        (HERMES, '<tool_call>\n{"name": "ti', '<tool_call>\n{"name": "ti', []),
        (HERMES, '<tool_call>\n{"name": "time", "arguments": {"a": [1', "", [("time", '{"a": [1')]),
        (HERMES, hermes("time", "{}")[:-5], "", [("time", "{}")]),
        (HERMES, "so <tool_ca", "so <tool_ca", []),
        (LLAMA, '{"name": "time", "parameters": {"a": "b"}}', "", [("time", '{"a": "b"}')]),
        (LLAMA, ' {"name":"time","parameters":{}}\n', "", [("time", "{}")]),
        (
            LLAMA,
            'It is {"name": "time", "parameters": {}}',
            'It is {"name": "time", "parameters": {}}',
            [],
        ),
        (LLAMA, '{"name": "Ana", "age": 3}', '{"name": "Ana", "age": 3}', []),
        (
            MISTRAL,
            '[TOOL_CALLS] [{"name": "time", "arguments": {}},'
            ' {"name": "weather", "arguments": {"a": "]"}}]',
            "",
            [("time", "{}"), ("weather", '{"a": "]"}')],
        ),
        (MISTRAL, "a [list] of [TOOL_CALLS] things", "a [list] of [TOOL_CALLS] things", []),
        (MISTRAL, '[TOOL_CALLS] [{"name": "time", "arguments": {}}] ok]', " ok]", [("time", "{}")]),
        (
            TEKKEN,
            'Yes.[TOOL_CALLS]time[ARGS]{}[TOOL_CALLS]weather[ARGS]{"a": 1}',
            "Yes.",
            [("time", "{}"), ("weather", '{"a": 1}')],
        ),
    ],
)
def test_however_it_comes_it_is_read_alike(form, text, content, calls):
    for size in (1, 2, 3, 7, len(text) or 1):
        parser, deltas = ToolParser(form, NAMES), []
        for at in range(0, len(text), size):
            deltas += parser.feed(text[at : at + size])
        said, found = joined(deltas + parser.end())
        assert said == content, size
        assert [(c["function"]["name"], c["function"]["arguments"]) for c in found] == calls, size
        assert len({c["id"] for c in found}) == len(found)


def test_text_and_arguments_are_not_held_back():
    parser = ToolParser(HERMES, NAMES)
    assert joined(parser.feed("Hello, < you")) == ("Hello, < you", [])
    assert joined(parser.feed(" <tool_call>\n{")) == ("", [])
    begun = parser.feed('"name": "time", "arguments": {"a')
    [found] = joined(begun)[1]
    assert found["function"] == {"name": "time", "arguments": '{"a'}
    [more] = parser.feed('": "lon')
    assert more.text == '": "lon'  # type: ignore[union-attr]
