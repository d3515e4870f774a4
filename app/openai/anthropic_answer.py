"""Answers as Anthropic's Messages API has them: whole, as events, and errors."""

from __future__ import annotations

import json
from typing import Any

from app.openai.answer import Answer
from app.openai.tool_parser import ArgumentsDelta, CallBegin, ContentDelta, Delta

_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "context": "model_context_window_exceeded",
    "tool_calls": "tool_use",
}


def message_body(answer: Answer, name: str, model: str, stop: str | None) -> dict[str, Any]:
    """The body of an answer without an error. ``stop``: the stop sequence that ended it."""
    content: list[dict[str, Any]] = []
    if answer.response:
        content.append({"type": "text", "text": answer.response})
    for call in answer.tool_calls or ():
        function = call["function"]
        try:
            given = json.loads(function["arguments"])
        except ValueError:  # cut off: nothing that may be called
            content.append({"type": "text", "text": f"{function['name']}{function['arguments']}"})
            continue
        used = {"id": call["id"], "name": function["name"], "input": given}
        content.append({"type": "tool_use", **used})
    body = message_head(name, model, 0)
    return {**body, "content": content, **_ended(answer, stop), "usage": _usage(answer)}


def message_head(name: str, model: str, prompt_tokens: int) -> dict[str, Any]:
    """A message that has just begun."""
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
    }


def _ended(answer: Answer, stop: str | None) -> dict[str, Any]:
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


class MessageEvents:
    """The events of a message that is streamed, from its deltas."""

    def __init__(self, name: str, model: str, prompt_tokens: int) -> None:
        self._head = message_head(name, model, prompt_tokens)
        self._index = -1
        self._open: str | None = None  # the type of the block that is being said

    def begin(self) -> list[dict[str, Any]]:
        """The first ones."""
        return [{"type": "message_start", "message": self._head}, {"type": "ping"}]

    def add(self, delta: Delta) -> list[dict[str, Any]]:
        """More of the answer."""
        match delta:
            case ContentDelta():
                opened = [] if self._open == "text" else self._start({"type": "text", "text": ""})
                return [*opened, self._delta({"type": "text_delta", "text": delta.text})]
            case CallBegin():
                block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
                return self._start(block)
            case ArgumentsDelta():
                return [self._delta({"type": "input_json_delta", "partial_json": delta.text})]

    def end(self, answer: Answer, stop: str | None) -> list[dict[str, Any]]:
        """The last ones."""
        told = {"type": "message_delta", "delta": _ended(answer, stop), "usage": _usage(answer)}
        return [*self._stop(), told, {"type": "message_stop"}]

    def _start(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        closed = self._stop()
        self._index += 1
        self._open = block["type"]
        begun = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*closed, begun]

    def _stop(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
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


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error in the form of this API."""
    found = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": found, "message": message}, "request_id": None}
