"""Tools of a body, as a model is told them and as they bind its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.openai.answer import answer_of
from app.openai.prepare import PromptForm, form_prompt
from app.openai.request import body_task
from app.openai.response import answer_body
from runtimes.chat import render_chat
from runtimes.grammars import grammar_of
from runtimes.request import Completion, FinishReason, SamplingParams, Timings, Usage
from runtimes.sampling.grammar import GrammarCompiler

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
USER = {"role": "user", "content": "How is it in Rome?"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
        }
    ],
}
RETURNED = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
HERMES = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|end|>{% endfor %}"
)
LLAMA = HERMES.replace("<tool_call>", "").replace('"arguments": ', '"parameters": ')
MISTRAL = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls %}[TOOL_CALLS] [{{ c.function | tojson }}{{ c.id }}]{% endfor %}"
    "{{ m.tool_call_id }}{% endfor %}"
)


def ask(template: str | None = PLAIN, messages: Sequence[Any] = (USER,), **body: Any) -> PromptForm:
    params = SamplingParams()
    task = body_task({"messages": list(messages), **body}, "chat", params)
    return form_prompt(task, task.opening, template, task.sampling or params)


def told(asked: PromptForm, template: str) -> str:
    return render_chat(template, asked.messages, tools=asked.tools)


class _Bytes:
    """A vocabulary of all bytes, an end, and control tokens."""

    vocab_size = 260
    bos_token = eos_token = ""
    eos_ids = frozenset({256})
    control = ("<tool_call>", "[TOOL_CALLS]", "</tool_call>")

    def encode(self, text, *, add_special=False, parse_special=True):
        if parse_special and text in self.control:
            return [257 + self.control.index(text)]
        return list(text.encode())

    def token_bytes(self, token):
        return bytes([token]) if token < 256 else b""


def follows(asked: PromptForm, *parts: str | int) -> bool:
    """Whether the answer may be this, and end there."""
    constraint = asked.params.constraint
    assert constraint is not None
    matcher = GrammarCompiler(_Bytes()).compile(constraint, grammar_of(constraint))()
    for part in parts:
        for token in [part] if isinstance(part, int) else part.encode():
            matcher.accept(token)
    return matcher.error is None and bool(matcher._matcher.is_accepting())


def test_a_template_that_knows_tools_is_given_them():
    found = ask(HERMES, [USER, CALLED, RETURNED], tools=[WEATHER])
    text = told(found, HERMES)
    assert text.startswith(f"<tools>{json.dumps(WEATHER)}</tools><|user|>How is it in Rome?")
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>' in text
    assert text.endswith("<|tool|>sunny<|end|>")


def test_a_template_that_knows_none_gets_messages_that_tell_them():
    system = {"role": "developer", "content": "Be kind."}
    again = {**RETURNED, "content": "warm"}
    found = ask(PLAIN, [system, USER, CALLED, RETURNED, again], tools=[WEATHER])
    text = told(found, PLAIN)
    assert found.tools is None
    assert text.startswith("<|system|>Be kind.\n\n# Tools\n")
    assert f"<tools>\n{json.dumps(WEATHER)}\n</tools>" in text
    assert text.endswith(
        '<|assistant|><tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
        "<|end|><|user|><tool_response>\nsunny\n</tool_response>\n"
        "<tool_response>\nwarm\n</tool_response><|end|>"
    )
    alone = told(ask(PLAIN, [USER, CALLED, RETURNED]), PLAIN)
    assert "# Tools" not in alone
    assert "<tool_response>\nsunny" in alone


def test_mistral_counts_the_characters_of_ids():
    text = told(ask(MISTRAL, [USER, CALLED, RETURNED], tools=[WEATHER]), MISTRAL)
    short = text[-9:]
    assert short.isalnum()
    assert text.count(short) == 2


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
NO_TIME = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'


def test_an_answer_is_a_text_or_calls():
    for template in (PLAIN, HERMES):
        found = ask(template, tools=[WEATHER, TIME])
        assert follows(found, "I do not know { < <tool_cal")
        assert follows(found, "Let me see: ", CALL)
        assert follows(found, CALL, "\n", NO_TIME)
        assert not follows(found, CALL[:-3])
        assert not follows(found, CALL.replace("weather", "other"))
        assert not follows(found, CALL.replace('"Rome"', "5"))
        assert not follows(found, CALL.replace('"Rome"', '"Rome", "x": 1'))
        # The vocabulary's own tokens for the marks stand for them.
        assert follows(found, "See: ", 257, CALL[11:-12], 259)
    one = ask(HERMES, tools=[WEATHER, TIME], parallel_tool_calls=False)
    assert follows(one, CALL)
    assert not follows(one, CALL, "\n", NO_TIME)


def test_the_choice_binds():
    must = ask(HERMES, tools=[WEATHER, TIME], tool_choice="required")
    assert follows(must, NO_TIME)
    assert not follows(must, "No. ", NO_TIME)
    assert not follows(must, "")
    named = {"type": "function", "function": {"name": "time"}}
    only = ask(HERMES, tools=[WEATHER, TIME], tool_choice=named)
    assert follows(only, NO_TIME)
    assert not follows(only, CALL)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    assert follows(ask(HERMES, tools=[WEATHER, TIME], tool_choice=allowed), "no")
    none = ask(HERMES, tools=[WEATHER], tool_choice="none")
    assert (none.params.constraint, none.tools, none.parser()) == (None, None, None)


def test_other_forms():
    llama = ask(LLAMA, tools=[WEATHER, TIME])
    assert follows(llama, '{"name": "weather", "parameters": {"city": "Rome"}}')
    assert follows(llama, 'It is {"name": "x"}')
    assert follows(llama, '{"age": 3}')
    assert not follows(llama, '{"name": "x"}')
    listed = (
        '[{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "time", "arguments": {}}]'
    )
    mistral = ask(MISTRAL, tools=[WEATHER, TIME])
    assert follows(mistral, "Yes. ", 258, " ", listed)
    assert follows(mistral, "[TOOL_CALLS] ", listed)
    assert not follows(mistral, "[TOOL_CALLS] ", listed[:-1])
    tekken = ask(MISTRAL + "{# [ARGS] #}", tools=[WEATHER, TIME])
    assert follows(tekken, 258, 'weather[ARGS]{"city": "Rome"}', 258, "time[ARGS]{}")


def test_an_answer_in_json_may_be_a_call_instead():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = ask(HERMES, tools=[WEATHER], response_format=wanted)
    assert follows(found, '{"a": 1}')
    assert follows(found, CALL)
    assert not follows(found, "Hello")


def test_calls_are_in_the_body_of_the_answer():
    found = ask(HERMES, tools=[WEATHER])
    times = Timings(0.1, 0.2, 0.3, 0.4, 0.5, 3, 2)

    def body(text: str, reason: FinishReason = FinishReason.STOP) -> Any:
        done = Completion("r", text, (1, 2), reason, Usage(3, 2), times)
        return answer_body(answer_of([done], found.parser), "chat", "7", "m")["choices"][0]

    said = body("Let me see.\n" + CALL)
    assert (said["finish_reason"], said["message"]["content"]) == ("tool_calls", "Let me see.")
    [call] = said["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert call["id"].startswith("call_")
    assert body(CALL)["message"]["content"] is None
    cut = body(CALL[:-17], FinishReason.LENGTH)
    assert cut["finish_reason"] == "length"
    assert cut["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rom'
    assert "tool_calls" not in body("Hello.")["message"]
