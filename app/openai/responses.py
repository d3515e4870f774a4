"""OpenAI's Responses API: bodies as tasks, and answers as its bodies and events. Nothing is
stored: a conversation comes whole.

Source of the format: the Responses pages of OpenAI's API reference.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from app.openai.answer import Answer, TokenLogprobs
from app.openai.request import (
    BUDGETS,
    CHAT_NAMES,
    OF_SERVERS,
    completed,
    response_reasoning,
    sampling_of,
)
from app.openai.task import Task, parts_text, task_at
from app.openai.tool_parser import ArgumentsDelta, CallBegin, ContentDelta, Delta, ThoughtDelta
from app.openai.tools import ToolFields, tools_of
from app.openai.validation import (
    MOST_MESSAGES,
    Given,
    InputError,
    JsonObject,
    as_unicode,
    check_count,
    fields_of,
    kind,
    require_object,
    shown,
)
from runtimes.request import SamplingParams

# Who asks, what is kept, how it is billed, and what only hints at how to answer.
_HINTS = frozenset(
    "model user metadata store service_tier safety_identifier prompt_cache_key truncation"
    " prompt_cache_retention max_tool_calls include stream_options".split()
)
_KNOWN = frozenset(
    "input instructions max_output_tokens text tools tool_choice parallel_tool_calls"
    " reasoning".split()
)
_OTHER_NAMES = frozenset({"max_tokens", "max_completion_tokens", "response_format", "n"})
_SAMPLED = CHAT_NAMES - _OTHER_NAMES
_STORED = "answers are not stored here"
_FIELDS = fields_of(
    _KNOWN | _SAMPLED | OF_SERVERS | set(BUDGETS),
    _HINTS,
    {"previous_response_id": _STORED, "conversation": _STORED},
)
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_text = partial(parts_text, fields=_TEXTS, part="a content part")
_TOOLS = ToolFields()
_LOGPROBS = "message.output_text.logprobs"


def response_task(body: Any, defaults: SamplingParams) -> Task:
    """The task of a body. Raises InputError."""
    ignored = _FIELDS.check(body)
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
    tools = tools_of(body, _TOOLS, ignored)
    task = replace(task, history=history)
    return completed(task, body, tools, _sampling(body, defaults), ignored, defaults)


def _sampling(body: Given, defaults: SamplingParams) -> SamplingParams | None:
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
    return sampling_of(given, "chat", defaults, response_reasoning(body))


def _messages(items: list[Any]) -> list[JsonObject]:
    """The items as messages of a chat."""
    check_count(len(items), "input", "items", MOST_MESSAGES)
    said_so_far: list[JsonObject] = []
    for number, item in enumerate(items):
        where = f"input.{number}"
        require_object(item, where, "an item")
        match item.get("type", "message"):
            case "message":
                text = _text(item.get("content"), f"{where}.content")
                last = said_so_far[-1] if said_so_far else {}
                if item.get("role") == "assistant" and _only_thought(last):
                    last["content"] = text
                else:
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
                thought = _thought(item, where)
                if thought:  # of the message or the calls behind it
                    said_so_far.append(
                        {"role": "assistant", "content": "", "reasoning_content": thought}
                    )
            case other:
                said = f"{where}.type: {shown(other)} is not supported here"
                raise InputError("unsupported_parameter", said)
    return [message for message in said_so_far if not _only_thought(message)]


def _only_thought(message: Given) -> bool:
    """Whether a message has nothing but a thought: the answer behind it is missing yet."""
    said = message.get("content") or message.get("tool_calls")
    return not said and "reasoning_content" in message


def _thought(item: Given, where: str) -> str:
    """The text of a reasoning item; "" where its text is a provider's secret."""
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        raise InputError("wrong_type", f"{where} must have a list of texts, not {kind(parts)}")
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    thought = "".join(text for text in texts if isinstance(text, str))
    return as_unicode(thought, where)


# Answers as OpenAI's Responses API has them: whole, and as events.


Events = list[JsonObject]
# What a response repeats of its request, and what stands there if the request says nothing.
_REPEATED: JsonObject = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
}


class ResponseEvents:
    """One response from its deltas: its items, and the events that tell of them. ``body`` is that
    of the request, parts of which are repeated."""

    def __init__(self, name: str, model: str, _: int, body: Given) -> None:
        repeated = {
            key: default if body.get(key) is None else body[key]
            for key, default in _REPEATED.items()
        }
        self._head = {
            "id": f"resp_{name}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "previous_response_id": None,
            "store": False,
            "usage": None,
            **repeated,
        }
        self._items: list[JsonObject] = []
        self._open = False  # whether the last item is being said
        self._count = 0

    def begin(self) -> Events:
        """The first ones."""
        response = {**self._head, "output": []}
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def add(self, delta: Delta) -> Events:
        """More of the answer."""
        match delta:
            case ThoughtDelta():
                return self._say("reasoning", delta.text)
            case ContentDelta():
                return self._say("message", delta.text, logprobs=[])
            case CallBegin():
                said = {"call_id": delta.id, "name": delta.name, "arguments": ""}
                return self._start("function_call", "fc", **said)
            case ArgumentsDelta():
                self._items[-1]["arguments"] += delta.text
                return [self._piece("function_call_arguments.delta", delta=delta.text)]

    def end(self, answer: Answer, _: str | None) -> Events:
        """The last ones."""
        cut = answer.finish_reason in ("length", "context")
        status, usage = "incomplete" if cut else "completed", answer.usage or {}
        events = self._stop(status, answer.logprobs)
        told = {
            **self._head,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._items,
            "usage": usage_body(usage, usage.get("reasoning_tokens", 0)),
        }
        return [*events, self._event(f"response.{status}", response=told)]

    def failed(self, _: int, message: str) -> JsonObject:
        """The last one of a response that has an error."""
        error = {"code": "server_error", "message": message}
        told = {**self._head, "status": "failed", "error": error, "output": self._items}
        return self._event("response.failed", response=told)

    def whole(self, answer: Answer, stop: str | None) -> JsonObject:
        """The body of an answer without an error."""
        if answer.reasoning:
            self.add(ThoughtDelta(answer.reasoning))
        if answer.response:
            self.add(ContentDelta(answer.response))
        for index, call in enumerate(answer.tool_calls or ()):
            function = call["function"]
            self.add(CallBegin(index, call["id"], function["name"]))
            self.add(ArgumentsDelta(index, function["arguments"]))
        response: JsonObject = self.end(answer, stop)[-1]["response"]
        return response

    def _say(self, kind: str, text: str, **more: Any) -> Events:
        """More of an item of this type, which begins if another one is open."""
        goes_on = self._open and self._items[-1]["type"] == kind
        events = [] if goes_on else self._start_text(kind)
        [part] = self._items[-1]["content"]
        part["text"] += text
        return [*events, self._piece(f"{part['type']}.delta", delta=text, **more)]

    def _start_text(self, kind: str) -> Events:
        if kind == "reasoning":
            part: JsonObject = {"type": "reasoning_text", "text": ""}
            return self._start(kind, "rs", summary=[], content=[part])
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        events = self._start(kind, "msg", role="assistant", content=[part])
        return [*events, self._piece("content_part.added", part=dict(part))]

    def _start(self, kind: str, prefix: str, **more: Any) -> Events:
        events = self._stop("completed", None)
        name = f"{prefix}_{secrets.token_hex(12)}"
        item = {"id": name, "type": kind, "status": "in_progress", **more}
        self._items.append(item)
        self._open = True
        told = {**item, "content": []} if "content" in item else dict(item)
        index = len(self._items) - 1
        added = self._event("response.output_item.added", output_index=index, item=told)
        return [*events, added]

    def _stop(self, status: str, logprobs: TokenLogprobs | None) -> Events:
        if not self._open:
            return []
        self._open = False
        item = self._items[-1]
        item["status"] = status
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._piece("function_call_arguments.done", **told)]
        elif item["type"] == "reasoning":
            [part] = item["content"]
            events = [self._piece("reasoning_text.done", text=part["text"])]
        else:
            [part] = item["content"]
            part["logprobs"] = logprobs or []
            events = [
                self._piece("output_text.done", text=part["text"], logprobs=part["logprobs"]),
                self._piece("content_part.done", part=part),
            ]
        index = len(self._items) - 1
        return [*events, self._event("response.output_item.done", output_index=index, item=item)]

    def _piece(self, name: str, /, **more: Any) -> JsonObject:
        """An event about the item that is being said."""
        item = self._items[-1]
        where = {"item_id": item["id"], "output_index": len(self._items) - 1}
        if "content" in item:
            where["content_index"] = 0
        return self._event(f"response.{name}", **where, **more)

    def _event(self, name: str, /, **more: Any) -> JsonObject:
        self._count += 1
        return {"type": name, "sequence_number": self._count - 1, **more}


def usage_body(usage: Mapping[str, int], thought: int = 0) -> JsonObject:
    """Counts of tokens, as a response and a batch have them."""
    asked, answered = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    cached = usage.get("cached_tokens", 0)
    return {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": answered,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": asked + answered,
    }
