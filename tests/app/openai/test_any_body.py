"""Whatever a body holds, it becomes a task or is refused in words."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from app.openai.anthropic import messages_task
from app.openai.prepare import form_prompt
from app.openai.request import body_task
from app.openai.responses import response_task
from app.openai.task import Task
from app.openai.validation import InputError
from runtimes.request import SamplingParams
from tests.app.openai.test_tools import HERMES, MISTRAL, PLAIN, TIME, USER, WEATHER

WORDS = some.sampled_from(
    "user assistant system tool developer text function tool_use tool_result function_call"
    " function_call_output input_text message auto any none required json_schema object x".split()
)
NAMES = some.sampled_from(
    "role content type text name id tool_calls function arguments tool_call_id tool_use_id input"
    " call_id output parameters input_schema properties schema format json_schema tools mode"
    " allowed_tools refusal is_error $ref enum".split()
)
LEAVES = some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False)
VALUES = some.recursive(
    LEAVES | WORDS | some.text(max_size=4),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
FIELDS = some.sampled_from(
    "messages input prompt tools tool_choice parallel_tool_calls stop stop_sequences system"
    " instructions text output_config response_format max_tokens max_output_tokens logprobs"
    " structured_outputs top_logprobs priority reproducible include metadata n best_of"
    " logit_bias".split()
)
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "time"}}]}
WHOLE: dict[str, Any] = {
    "messages": [USER, CALL, {"role": "tool", "tool_call_id": "x", "content": "12:00"}],
    "tools": [WEATHER, TIME],
}


def check(read: Any) -> None:
    with contextlib.suppress(InputError):
        task = read()
        assert isinstance(task, Task)
        for template in (PLAIN, HERMES, MISTRAL):
            form_prompt(task, task.opening, template, task.sampling or SamplingParams())


@settings(max_examples=300)
@given(some.dictionaries(FIELDS, VALUES, max_size=3), some.booleans())
def test_any_body(fields: dict[str, Any], whole: bool) -> None:
    if "structured_outputs" in fields:
        fields["structured_outputs"] = {"choice": ["x"]}
    defaults = SamplingParams()
    chat = {**WHOLE, **fields} if whole else {"messages": [USER], **fields}
    check(lambda: body_task(chat, "chat", defaults, served=True))
    check(lambda: body_task({"prompt": "x", **fields}, "completions", defaults, served=True))
    check(lambda: messages_task({"messages": [USER], "max_tokens": 5, **fields}, defaults))
    check(lambda: response_task({"input": "x", **fields}, defaults))


@settings(max_examples=300)
@given(VALUES)
def test_any_message(item: Any) -> None:
    defaults = SamplingParams()
    check(lambda: body_task({"messages": [USER, item, USER]}, "chat", defaults))
    check(lambda: body_task({"messages": [USER], "tools": [item]}, "chat", defaults))
    said = {"role": "user", "content": [item]}
    check(lambda: messages_task({"messages": [USER, item, said], "max_tokens": 5}, defaults))
    check(lambda: response_task({"input": [item, {"role": "user", "content": "x"}]}, defaults))
