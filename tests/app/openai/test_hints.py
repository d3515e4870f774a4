"""A request may have more than is read: hints are left out and named, what would make the
answer another one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.openai.constraints import FORMATS, UNKNOWN, followed
from app.openai.tool_forms import form_of, tools_constraint
from app.openai.validation import MOST_TOLD, InputError
from runtimes.grammars import grammar_of
from tests.app.openai.readers import chat, completion, message, response

PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
DIALECTS = (chat, completion, response, message)


@pytest.mark.parametrize("ask", DIALECTS)
def test_a_hint_is_left_out_and_named(ask):
    hints = {"client_metadata": {"a": 1}, "context_management": {"edits": []}, "nothing": None}
    task = ask(metadata={"user_id": "x"}, **hints)
    assert task.ignored == ("client_metadata", "context_management")
    assert ask(metadata={"user_id": "x"}).ignored == ()


@pytest.mark.parametrize("ask", DIALECTS)
def test_names_are_clean_and_few(ask):
    assert ask(**{"a\r\nx: 1,é\ud800": 1}).ignored == ("a??x:?1???",)
    [long] = ask(**{"n" * 10_000: 1}).ignored
    assert len(long) == 120
    assert len(ask(**{f"name{i}": 1 for i in range(1000)}).ignored) == MOST_TOLD


def test_a_bound_of_thoughts_that_a_completion_does_not_have_is_named():
    bounds = {"think_tokens": 4, "thinking_budget_tokens": 3}
    assert completion(**bounds).ignored == ("think_tokens", "thinking_budget_tokens")
    assert completion(think_tokens=3, thinking_at="prompt").ignored == ()


OWN = {"type": "function", "name": "f", "parameters": PARAMETERS}
BLOCK = {"name": "f", "input_schema": PARAMETERS}


@pytest.mark.parametrize(
    ("ask", "own", "others"),
    [
        (chat, CHAT_TOOL, [{"type": "custom", "custom": {"name": "x"}}]),
        (
            response,
            OWN,
            [
                {"type": "web_search"},
                {"type": "namespace", "name": "x", "tools": [OWN]},
                {"type": "custom", "name": "apply_patch"},
                {"type": "image_generation"},
                {"type": "computer_use_preview"},
                {"type": "mcp", "server_url": "http://example.invalid"},
                {"type": "code_interpreter"},
            ],
        ),
        (
            message,
            BLOCK,
            [
                {"type": "web_search_20250305", "name": "web_search"},
                {"type": "bash_20250124", "name": "bash"},
                {"type": "computer_20250124", "name": "computer"},
            ],
        ),
    ],
)
def test_tools_that_a_provider_runs_are_left_out(ask, own, others):
    task = ask(tools=[others[0], own, *others[1:]])
    assert task.tools is not None
    assert [one["name"] for one in task.tools.functions] == ["f"]
    numbers = [0, *range(2, len(others) + 1)]
    told = tuple(f"tools[{i}].type={of['type']}" for i, of in zip(numbers, others, strict=True))
    assert task.ignored == told
    assert task.tools.json() == ask(tools=[own]).tools.json()  # type: ignore[union-attr]
    assert ask(tools=others).tools is None


def tool(strict: bool | None = None, **keywords: Any) -> dict[str, Any]:
    inner = {"type": "array", "items": {"type": "string"}, **keywords}
    parameters = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    function = {"name": "f", "parameters": parameters}
    return {
        "type": "function",
        "function": function | ({} if strict is None else {"strict": strict}),
    }


def test_a_schema_is_followed_as_far_as_it_can_be():
    asked = tool(uniqueItems=True, maxItems=2)
    task = chat(tools=[asked])
    assert task.ignored == ("tools[0].function.parameters.properties.a.uniqueItems",)
    tools = task.tools
    assert tools is not None
    assert tools.json() == [asked]  # the model is told all of it
    followed_a = tools.schema(tools.functions[0])["properties"]["a"]
    assert followed_a == {"type": "array", "items": {"type": "string"}, "maxItems": 2}
    assert grammar_of(tools_constraint(tools, form_of(None), None))
    with pytest.raises(InputError, match="Unimplemented keys"):
        chat(tools=[tool(strict=True, uniqueItems=True)])
    with pytest.raises(InputError, match="at #/properties/a"):
        chat(tools=[tool(uniqueItems=True, items={"type": "odd"})])


def test_an_answer_is_never_loosened():
    schema = {"type": "array", "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(InputError, match="Unimplemented keys"):
        chat(response_format=wanted)


LOOSER = json.loads((Path(__file__).parent / "looser.json").read_text())


@pytest.mark.parametrize(("schema", "looser", "at"), LOOSER)
def test_what_a_schema_loses(schema, looser, at):
    assert followed(schema, "s") == (looser, [f"s{at}"])


def test_the_lists_are_what_the_library_does_not_know():
    for keyword in UNKNOWN:
        with pytest.raises(InputError, match="Unimplemented"):
            chat(tools=[tool(strict=True, **{keyword: {}})])
    for name in FORMATS:
        assert followed({"type": "string", "format": name}, "s")[1] == []
    value = {"items": {"enum": [{"not": 1}]}, "default": {"not": 1}}  # no schemas
    assert followed(value, "s") == (value, [])


HEADER = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={};"


def test_the_line_that_changes_in_each_turn_is_dropped():
    def system(value: Any) -> list[Any]:
        return [one for one in message(system=value).opening if one["role"] == "system"]

    blocks = [
        {"type": "text", "text": HEADER.format("a1")},
        {"type": "text", "text": "You help. x-anthropic-billing-header: is a name."},
    ]
    said = "You help. x-anthropic-billing-header: is a name."
    assert system(blocks) == system(blocks[1:]) == [{"role": "system", "content": said}]
    assert system(HEADER.format("b2") + "\n\n" + said) == system(said)
    assert system(blocks[:1]) == []
