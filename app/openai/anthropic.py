"""Anthropic's Messages API: bodies as tasks, and answers as its bodies and events.

Source of the format: the Messages and Count tokens pages of Anthropic's API reference.
"""

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from app.openai.answer import Answer
from app.openai.constraints import schema_constraint
from app.openai.request import (
    BUDGETS,
    CHAT_NAMES,
    OF_SERVERS,
    completed,
    message_reasoning,
    sampling_of,
)
from app.openai.task import Task, merged, parts_text
from app.openai.tool_parser import ArgumentsDelta, CallBegin, ContentDelta, Delta, ThoughtDelta
from app.openai.tools import ToolFields, Tools, tools_of
from app.openai.validation import (
    MOST_MESSAGES,
    Given,
    Ignored,
    InputError,
    JsonObject,
    as_unicode,
    check_count,
    fields_of,
    require_list,
    require_object,
    shown,
)
from runtimes.chat import Message
from runtimes.request import SamplingParams

# Who asks, how it is billed, cached and where it runs; effort only hints at how to answer.
_HINTS = frozenset(
    "model metadata service_tier cache_control inference_geo speed user_profile_id"
    " workspace_id diagnostics".split()
)
# A message is one, without log-probabilities; the rest may be said as elsewhere.
_SAMPLED = CHAT_NAMES - set(
    "max_completion_tokens response_format n stop logprobs top_logprobs".split()
)
_KNOWN = frozenset(
    "messages system stop_sequences tools tool_choice output_config thinking".split()
)
_FIELDS = fields_of(_KNOWN | _SAMPLED | OF_SERVERS | set(BUDGETS), _HINTS)
# A line with which Claude Code begins its system text, another one in each turn: it tells a
# provider whom to bill, and a model nothing. With it no two prompts would begin alike.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
_TOOLS = ToolFields(("custom", None), "input_schema")
_BLOCK = "a content block"
_text = partial(parts_text, fields={"text": "text"}, part=_BLOCK)


def messages_task(body: Any, defaults: SamplingParams, *, counted: bool = False) -> Task:
    """The task of a body; ``counted``: only its tokens are asked for. Raises InputError."""
    ignored = _FIELDS.check(body)
    if not counted and body.get("max_tokens") is None:
        raise InputError("missing_parameter", "body has no 'max_tokens'")
    said = [*_system(body.get("system")), *_messages(body.get("messages"))]
    history = merged(said, ("user",))
    last = history[-1]
    if last.get("tool_calls"):
        raise InputError("wrong_type", "what the calls of 'messages' have returned is missing")
    # A system message may be the last one, and so may the beginning of an answer.
    turns = (history.pop()["content"],) if last["role"] == "user" else ()
    tools, sampling = _tools(body, ignored), _sampling(body, defaults)
    return completed(Task(tuple(history), turns), body, tools, sampling, ignored, defaults)


def _sampling(body: Given, defaults: SamplingParams) -> SamplingParams | None:
    given = {name: body[name] for name in _SAMPLED if body.get(name) is not None}
    if (stops := body.get("stop_sequences")) is not None:
        if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
            raise InputError("wrong_type", "stop_sequences must be a list of texts")
        given["stop"] = stops
    config = body.get("output_config") or {}
    require_object(config, "output_config")
    wanted = config.get("format")
    if wanted is not None:
        where = "output_config.format"
        require_object(wanted, where)
        if wanted.get("type") != "json_schema":
            raise InputError("invalid_value", f"{where}.type must be json_schema")
        schema_constraint(wanted.get("schema"), f"{where}.schema")
        given["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return sampling_of(given, "chat", defaults, message_reasoning(body))


def _tools(body: Given, ignored: Ignored) -> Tools | None:
    given, choice = body.get("tools"), body.get("tool_choice") or {"type": "auto"}
    require_object(choice, "tool_choice")
    wanted = choice.get("type")
    if wanted not in ("auto", "any", "tool", "none"):
        said = f"tool_choice.type must be auto, any, tool or none, not {shown(wanted)}"
        raise InputError("invalid_value", said)
    tool_choice = {"any": "required", "tool": {"name": choice.get("name")}}.get(wanted, wanted)
    parallel = choice.get("disable_parallel_tool_use") is not True
    asked = {"tools": given, "tool_choice": tool_choice, "parallel_tool_calls": parallel}
    return tools_of(asked, _TOOLS, ignored)


# Messages


def _system(value: Any) -> list[Message]:
    """The system text, without what another request of the same client would have otherwise."""
    if isinstance(value, str):
        value = _BILLING.sub("", value)
    elif isinstance(value, list):
        value = [_unbilled(block) for block in value]
    if value in (None, "", []):
        return []
    text = _text(value, "system")
    return [{"role": "system", "content": text}] if text else []


def _unbilled(block: Any) -> Any:
    text = block.get("text") if isinstance(block, Mapping) else None
    return {**block, "text": _BILLING.sub("", text)} if isinstance(text, str) else block


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise InputError("wrong_type", "messages must be a list of messages with at least one")
    check_count(len(value), "messages", "messages", MOST_MESSAGES)
    messages: list[Message] = []
    for number, item in enumerate(value):
        where = f"messages.{number}"
        require_object(item, where, "a message")
        role, content = item.get("role"), item.get("content")
        if role not in ("user", "assistant", "system"):
            raise InputError("wrong_type", f"{where}.role must be user or assistant")
        messages.extend(_of_blocks(role, content, f"{where}.content"))
    return messages


def _of_blocks(role: str, content: Any, where: str) -> list[Message]:
    """The messages that one is: what tools have returned are messages of their own."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    require_list(content, where, "a text or a list")
    texts: list[str] = []
    calls: list[JsonObject] = []
    results: list[Message] = []
    thoughts: list[str] = []
    for number, block in enumerate(content):
        at = f"{where}.{number}"
        require_object(block, at, _BLOCK)
        match block.get("type"), role:
            case "text", _:
                texts.append(_text(block.get("text"), f"{at}.text"))
            case "tool_use", "assistant":
                calls.append(_call(block, at))
            case "tool_result", "user":
                text = _text(block.get("content") or "", f"{at}.content")
                text = f"Error: {text}" if block.get("is_error") else text
                identity = block.get("tool_use_id")
                if not isinstance(identity, str):
                    raise InputError("wrong_type", f"{at}.tool_use_id must be a text")
                results.append({"role": "tool", "content": text, "tool_call_id": identity})
            case "thinking", "assistant":
                thoughts.append(_text(block.get("thinking"), f"{at}.thinking"))
            case "redacted_thinking", "assistant":
                pass  # nobody but its provider can read it
            case other, _:
                why = f"{at}.type: {shown(other)} is not supported here"
                raise InputError("unsupported_parameter", why)
    text = "".join(texts)
    more = {"reasoning_content": "\n\n".join(thoughts)} if thoughts else {}
    if calls:
        return [{"role": role, "content": text, "tool_calls": calls, **more}]
    if role == "user" and not text.strip():
        if not results:
            raise InputError("empty_prompt", f"{where} is blank")
        return results
    return [*results, {"role": role, "content": text, **more}]


def _call(block: Given, where: str) -> JsonObject:
    identity, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(identity, str) or not isinstance(name, str):
        raise InputError("wrong_type", f"{where} must have an id and a name")
    require_object(given, f"{where}.input")
    as_unicode(json.dumps([identity, name, given], ensure_ascii=False), where)
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": given}}


# Answers as Anthropic's Messages API has them: whole, as events, and errors.


_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "context": "model_context_window_exceeded",
    "tool_calls": "tool_use",
}


def _ended(answer: Answer, stop: str | None) -> JsonObject:
    reason = "stop_sequence" if stop is not None else _STOPS[answer.finish_reason or "stop"]
    return {"stop_reason": reason, "stop_sequence": stop}


def _usage(answer: Answer) -> dict[str, int]:
    usage = answer.usage or {}
    cached = usage.get("cached_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens", 0),
    }


Events = list[JsonObject]


class MessageEvents:
    """One message: as a whole, or the events that tell of it from its deltas. ``stop`` is the stop
    sequence that ended it."""

    def __init__(self, name: str, model: str, prompt_tokens: int, _: Given) -> None:
        self._head: JsonObject = {
            "id": f"msg_{name}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        self._index = -1
        self._open: str | None = None  # the type of the block that is being said

    def begin(self) -> Events:
        """The first ones."""
        return [{"type": "message_start", "message": self._head}, {"type": "ping"}]

    def add(self, delta: Delta) -> Events:
        """More of the answer."""
        match delta:
            case ThoughtDelta():
                return self._say("thinking", delta.text, signature="")
            case ContentDelta():
                return self._say("text", delta.text)
            case CallBegin():
                block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
                return self._start(block)
            case ArgumentsDelta():
                return [self._delta({"type": "input_json_delta", "partial_json": delta.text})]

    def end(self, answer: Answer, stop: str | None) -> Events:
        """The last ones."""
        told = {"type": "message_delta", "delta": _ended(answer, stop), "usage": _usage(answer)}
        return [*self._stop(), told, {"type": "message_stop"}]

    def failed(self, status: int, message: str) -> JsonObject:
        """The last one of a message that has an error."""
        return error_body(status, message)

    def whole(self, answer: Answer, stop: str | None) -> JsonObject:
        """The body of an answer without an error."""
        content: list[JsonObject] = []
        if answer.reasoning:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
        if answer.response:
            content.append({"type": "text", "text": answer.response})
        for call in answer.tool_calls or ():
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            try:
                given = json.loads(arguments)
            except ValueError:  # cut off: nothing that may be called
                content.append({"type": "text", "text": f"{name}{arguments}"})
                continue
            content.append({"type": "tool_use", "id": call["id"], "name": name, "input": given})
        ended = _ended(answer, stop)
        return {**self._head, "content": content, **ended, "usage": _usage(answer)}

    def _say(self, kind: str, text: str, **more: str) -> Events:
        """More of a block of this type, which begins if another one is open."""
        opened = [] if self._open == kind else self._start({"type": kind, kind: "", **more})
        return [*opened, self._delta({"type": f"{kind}_delta", kind: text})]

    def _start(self, block: JsonObject) -> Events:
        closed = self._stop()
        self._index += 1
        self._open = block["type"]
        begun = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*closed, begun]

    def _stop(self) -> Events:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(status: int, message: str) -> JsonObject:
    """An error in the form of this API."""
    found = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": found, "message": message}, "request_id": None}
