"""Answers as OpenAI's Responses API has them: whole, and as events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from app.openai.answer import Answer, TokenLogprobs
from app.openai.tool_parser import ArgumentsDelta, CallBegin, ContentDelta, Delta

Events = list[dict[str, Any]]
# What a response repeats of its request, and what stands there if the request says nothing.
_REPEATED: dict[str, Any] = {
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
    """One response from its deltas: its items, and the events that tell of them."""

    def __init__(self, name: str, model: str, body: Mapping[str, Any]) -> None:
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
        self._items: list[dict[str, Any]] = []
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
            case ContentDelta():
                text_item = self._open and self._items[-1]["type"] == "message"
                events = [] if text_item else self._start_text()
                self._items[-1]["content"][0]["text"] += delta.text
                return [*events, self._piece("output_text.delta", delta=delta.text, logprobs=[])]
            case CallBegin():
                return self._start(
                    {
                        "id": f"fc_{secrets.token_hex(12)}",
                        "type": "function_call",
                        "status": "in_progress",
                        "call_id": delta.id,
                        "name": delta.name,
                        "arguments": "",
                    }
                )
            case ArgumentsDelta():
                self._items[-1]["arguments"] += delta.text
                return [self._piece("function_call_arguments.delta", delta=delta.text)]

    def end(self, answer: Answer) -> Events:
        """The last ones."""
        events = self._stop("incomplete" if _cut(answer) else "completed", answer.logprobs)
        told = self.body(answer)
        return [*events, self._event(f"response.{told['status']}", response=told)]

    def fail(self, message: str) -> Events:
        """The last one of a response that has an error."""
        error = {"code": "server_error", "message": message}
        told = {**self._head, "status": "failed", "error": error, "output": self._items}
        return [self._event("response.failed", response=told)]

    def body(self, answer: Answer) -> dict[str, Any]:
        """The whole response, after its ``end``."""
        cut = _cut(answer)
        return {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._items,
            "usage": _usage(answer),
        }

    def _start_text(self) -> Events:
        item = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        events = self._start(item)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._items[-1]["content"].append(part)
        return [*events, self._piece("content_part.added", part=dict(part))]

    def _start(self, item: dict[str, Any]) -> Events:
        events = self._stop("completed", None)
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
        if item["type"] == "message":
            [part] = item["content"]
            part["logprobs"] = logprobs or []
            events = [
                self._piece("output_text.done", text=part["text"], logprobs=part["logprobs"]),
                self._piece("content_part.done", part=part),
            ]
        else:
            told = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._piece("function_call_arguments.done", **told)]
        index = len(self._items) - 1
        return [*events, self._event("response.output_item.done", output_index=index, item=item)]

    def _piece(self, name: str, /, **more: Any) -> dict[str, Any]:
        """An event about the item that is being said."""
        item = self._items[-1]
        where = {"item_id": item["id"], "output_index": len(self._items) - 1}
        if item["type"] == "message":
            where["content_index"] = 0
        return self._event(f"response.{name}", **where, **more)

    def _event(self, name: str, /, **more: Any) -> dict[str, Any]:
        self._count += 1
        return {"type": name, "sequence_number": self._count - 1, **more}


def response_body(answer: Answer, name: str, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer without an error."""
    events = ResponseEvents(name, model, body)
    if answer.response:
        events.add(ContentDelta(answer.response))
    for index, call in enumerate(answer.tool_calls or ()):
        function = call["function"]
        events.add(CallBegin(index, call["id"], function["name"]))
        events.add(ArgumentsDelta(index, function["arguments"]))
    events.end(answer)
    return events.body(answer)


def _cut(answer: Answer) -> bool:
    return answer.finish_reason in ("length", "context")


def _usage(answer: Answer) -> dict[str, Any]:
    usage = answer.usage or {}
    cached = usage.get("cached_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0),
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.get("completion_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.get("total_tokens", 0),
    }
