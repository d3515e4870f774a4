"""What a body of OpenAI's Responses API asks. Nothing is stored: a conversation comes whole.

Source of the format: the Responses pages of OpenAI's API reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.openai.request import CHAT_NAMES, OF_SERVERS, as_served, check_together, sampling_of
from app.openai.task import Task, task_at
from app.openai.tools import checked_function, tools_of
from app.openai.validation import (
    MOST_MESSAGES,
    InputError,
    as_unicode,
    check_bounds,
    kind,
    require_object,
    shown,
)
from runtimes.request import SamplingParams

# Who asks, what is kept, how it is billed, and what only hints at how to answer.
_IGNORED = frozenset(
    "model user metadata store service_tier safety_identifier prompt_cache_key reasoning truncation"
    " prompt_cache_retention max_tool_calls include".split()
)
_IDLE: dict[str, tuple[Any, ...]] = {"background": (False,), "stream": (False,)}
_KNOWN = frozenset(
    "input instructions max_output_tokens text tools tool_choice parallel_tool_calls".split()
)
_OTHER_NAMES = frozenset({"max_tokens", "max_completion_tokens", "response_format", "n"})
_SAMPLED = CHAT_NAMES - _OTHER_NAMES
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_NAMES = _KNOWN | _IGNORED | _SAMPLED | OF_SERVERS
_LOGPROBS = "message.output_text.logprobs"


def response_task(body: Any, defaults: SamplingParams) -> Task:
    """The task of a body. Raises InputError."""
    require_object(body, "body")
    check_bounds(body, "body")
    for name, value in body.items():
        if value is None or name in _NAMES or value in _IDLE.get(name, ()):
            continue
        why = "answers are not stored here" if name == "previous_response_id" else ""
        said = f"{name[:60]} is not supported" + (f": {why}" if why else "")
        raise InputError("unsupported_parameter", said)
    given, instructions = body.get("input"), body.get("instructions")
    if given is None:
        raise InputError("missing_parameter", "body has no 'input'")
    if isinstance(given, list):
        given = _messages(given)
    elif not isinstance(given, str):
        raise InputError("wrong_type", f"input must be a text or a list, not {kind(given)}")
    task = task_at(given, "input")
    history = task.history
    if instructions is not None:
        history = ({"role": "system", "content": _text(instructions, "instructions")}, *history)
    tools = tools_of(body, _function)
    sampling = _sampling(body, defaults)
    check_together(tools, sampling or defaults)
    task = replace(task, history=history, sampling=sampling, tools=tools)
    return as_served(task, body)


def _sampling(body: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams | None:
    given = {name: body[name] for name in _SAMPLED if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        given["max_tokens"] = body["max_output_tokens"]
    include = body.get("include") or []
    if isinstance(include, list) and _LOGPROBS in include:
        given["logprobs"] = True
    elif not given.get("top_logprobs"):
        given.pop("top_logprobs", None)
    text = body.get("text") or {}
    require_object(text, "text")
    wanted = text.get("format")
    if wanted is not None:
        require_object(wanted, "text.format")
        if wanted.get("type") == "json_schema":
            wanted = {"type": "json_schema", "json_schema": wanted}
        given["response_format"] = wanted
    return sampling_of(given, "chat", defaults)


def _function(tool: Any, where: str) -> Mapping[str, Any]:
    require_object(tool, where, "a tool")
    if tool.get("type") != "function":
        found = shown(tool.get("type"))
        raise InputError("unsupported_parameter", f"{where}.type must be function, not {found}")
    names = ("name", "description", "parameters")
    return checked_function({name: tool[name] for name in names if name in tool}, where)


def _messages(items: list[Any]) -> list[dict[str, Any]]:
    """The items as messages of a chat."""
    if len(items) > MOST_MESSAGES:
        said = f"input has {len(items):,} items, above {MOST_MESSAGES:,}"
        raise InputError("invalid_value", said)
    said_so_far: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        where = f"input.{number}"
        require_object(item, where, "an item")
        match item.get("type", "message"):
            case "message":
                text = _text(item.get("content"), f"{where}.content")
                said_so_far.append({"role": item.get("role"), "content": text})
            case "function_call":
                names = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": names}
                if not said_so_far or said_so_far[-1]["role"] != "assistant":
                    said_so_far.append({"role": "assistant", "content": ""})
                said_so_far[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                text = _text(item.get("output"), f"{where}.output")
                result = {"role": "tool", "content": text, "tool_call_id": item.get("call_id")}
                said_so_far.append(result)
            case "reasoning":
                pass  # templates leave it out of earlier answers
            case other:
                said = f"{where}.type: {shown(other)} is not supported here"
                raise InputError("unsupported_parameter", said)
    return said_so_far


def _text(value: Any, where: str) -> str:
    if isinstance(value, list):
        parts = []
        for number, part in enumerate(value):
            at = f"{where}.{number}"
            require_object(part, at, "a content part")
            name = _TEXTS.get(str(part.get("type")))
            if name is None:
                said = f"{at}.type: {shown(part.get('type'))} is not supported; only text is"
                raise InputError("unsupported_parameter", said)
            parts.append(_text(part.get(name), f"{at}.{name}"))
        return "".join(parts)
    if not isinstance(value, str):
        raise InputError("wrong_type", f"{where} must be a text, not {kind(value)}")
    return as_unicode(value, where)
