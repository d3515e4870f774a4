"""A conversation with tools as one model is asked it: by its template's own form, else by ours."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from app.openai.tool_forms import ToolForm
from app.openai.tools import Tools
from runtimes.chat import Message

# What models that call functions in this form were trained on.
_TOLD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
_ID_CHARACTERS = 9  # of a call, which Mistral's templates count


def own_messages(messages: Sequence[Message], tools: Tools | None) -> list[Message]:
    """For a template that knows no tools: they stand in the system message, calls in the answers,
    and what a tool has returned is said by the user."""
    said: list[dict[str, Any]] = []
    for message in messages:
        role, text = message["role"], message["content"]
        if role == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
            if said and said[-1].get("returned"):
                said[-1]["lines"].append(text)
            else:
                said.append({"role": "user", "lines": [text], "returned": True})
            continue
        calls = [_written(call["function"]) for call in message.get("tool_calls", ())]
        said.append({"role": role, "lines": [*filter(None, (text, *calls))]})
    if tools is not None:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools.json())
        told = _TOLD.format(tools=listed)
        if said and said[0]["role"] in ("system", "developer"):
            said[0]["lines"] = ["\n".join(said[0]["lines"]), "", told]
        else:
            said.insert(0, {"role": "system", "lines": [told]})
    return [{"role": one["role"], "content": "\n".join(one["lines"])} for one in said]


def form_messages(messages: Sequence[Message], form: ToolForm) -> list[Message]:
    """For a template that knows them."""
    if form.marker != "[TOOL_CALLS]":
        return list(messages)
    said: list[Message] = []
    for message in messages:
        one = dict(message)
        if "tool_call_id" in one:
            one["tool_call_id"] = _short_id(one["tool_call_id"])
        if "tool_calls" in one:
            one["tool_calls"] = [{**c, "id": _short_id(c["id"])} for c in one["tool_calls"]]
        said.append(one)
    return said


def _written(function: dict[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _short_id(identity: str) -> str:
    if len(identity) == _ID_CHARACTERS and identity.isalnum():
        return identity
    return hashlib.sha256(identity.encode()).hexdigest()[:_ID_CHARACTERS]
