"""Tools in the form of a model's template: how calls are written, the grammar of an answer with
calls, and conversations with them."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from app.openai.tools import Tools
from app.openai.validation import Given, JsonObject
from runtimes.chat import Message, render_chat
from runtimes.checks import JSON_WHITESPACE, quoted_refs
from runtimes.errors import RequestError
from runtimes.request import Constraint


@dataclass(frozen=True, slots=True)
class ToolForm:
    """``marker opening (begin NAME middle ARGUMENTS end) separator ... closing``."""

    marker: str  # what begins the calls; without one a call is a whole answer
    begin: str
    middle: str
    end: str
    opening: str = ""
    closing: str = ""
    separator: str | None = None  # between two calls; None: there is never more than one
    each: bool = False  # whether the marker stands before every call
    told: bool = True  # whether the template tells the tools
    # Texts of the form that a vocabulary may have as control tokens.
    markers: tuple[str, ...] = ()


_HERMES = ToolForm(
    "<tool_call>",
    '\n{"name": "',
    '", "arguments": ',
    "}\n</tool_call>",
    separator="\n",
    each=True,
    markers=("<tool_call>", "</tool_call>"),
)
_OWN = replace(_HERMES, told=False)
_LLAMA = ToolForm("", '{"name": "', '", "parameters": ', "}")
_TOOL_CALLS = "[TOOL_CALLS]"
_PROBE = {
    "type": "function",
    "function": {
        "name": "probe_of_tools",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}


@lru_cache(maxsize=32)
def form_of(template: str | None) -> ToolForm:
    """The form of a chat template; ours where it knows no tools, or shows a form that is not known
    here."""
    if template is None or not _tells_tools(template):
        return _OWN
    if _TOOL_CALLS in template:
        return _mistral(template)
    if "<tool_call>" in template:
        # Others put XML between these two.
        other = "<function=" in template or "<arg_key>" in template
        return _OWN if other or "arguments" not in template else _HERMES
    if '"parameters": ' in template and '{"name": ' in template:
        return _LLAMA
    return _OWN


def _mistral(template: str) -> ToolForm:
    if "[ARGS]" in template:
        marks = (_TOOL_CALLS, "[ARGS]")
        return ToolForm(_TOOL_CALLS, "", "[ARGS]", "", separator="", each=True, markers=marks)
    opening = " [" if f"{_TOOL_CALLS} [" in template else "["
    return ToolForm(
        _TOOL_CALLS,
        '{"name": "',
        '", "arguments": ',
        "}",
        opening=opening,
        closing="]",
        separator=", ",
        markers=(_TOOL_CALLS,),
    )


def _tells_tools(template: str) -> bool:
    said = [{"role": "user", "content": "Hello"}]
    try:
        return render_chat(template, said) != render_chat(template, said, tools=[_PROBE])
    except RequestError:
        return False


# The constraint by which an answer is a text, or calls of the tools with arguments that follow
# their schemas.


def tools_constraint(tools: Tools, form: ToolForm, answer: Constraint | None) -> Constraint:
    """``answer``: the JSON schema of an answer that is no call."""
    lines = []
    for number, function in enumerate(tools.functions):
        begin = _text(form.begin + function["name"] + form.middle)
        lines.append(f"tool_{number}: {begin} arguments_{number} {_text(form.end)}".rstrip())
        lines.append(f"arguments_{number}: {_json(tools.schema(function))}")
    one = " | ".join(f"tool_{number}" for number in range(len(tools.functions)))
    lines.append(f"call: {one}")
    calls = f"{_text(form.opening)} call"
    if tools.parallel and form.separator is not None:
        between = _text(form.separator + (form.marker if form.each else ""))
        calls += f" ({between} call)*"
    lines.append(f"calls: {calls} {_text(form.closing)}")
    if tools.required:
        start = f"{_text(form.marker)} calls"
    elif answer is not None:
        lines.append(f"answer: {_json(json.loads(answer.source))}")
        start = f"answer | {_text(form.marker)} calls"
    elif form.marker:
        marker = re.escape(form.marker).replace("/", "\\/")
        lines.append(f"before[suffix={_text(form.marker)}]: /(?s:.*)/")
        lines.append(f"PLAIN: /(?s:.*)/ & ~/(?s:.*){marker}(?s:.*)/")
        start = "PLAIN | before calls"
    else:  # no text begins as a call does
        first = r"\s*".join(map(re.escape, re.findall(r'"\w+"|\S', form.begin)[:2]))
        lines.append(rf"PLAIN: /(?s:.*)/ & ~/\s*{first}(?s:.*)/")
        start = "PLAIN | calls"
    grammar = "\n".join([f"start: {start}", *lines])
    source = {"grammar": grammar, "markers": list(form.markers)}
    return Constraint("tools", json.dumps(source, ensure_ascii=False))


def _text(literal: str) -> str:
    return json.dumps(literal, ensure_ascii=False) if literal else ""


def _json(schema: Given) -> str:
    spaces = {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
    return "%json " + json.dumps({**quoted_refs(schema), **spaces})


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
# A conversation with tools as one model is asked it: by its template's own form, else by ours.


_ID_CHARACTERS = 9  # of a call, which Mistral's templates count


def own_messages(messages: Sequence[Message], tools: Tools | None) -> list[Message]:
    """For a template that knows no tools: they stand in the system message, calls in the answers,
    and what a tool has returned is said by the user."""
    said: list[JsonObject] = []
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
    if form.marker != _TOOL_CALLS:
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


def _written(function: JsonObject) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _short_id(identity: str) -> str:
    if len(identity) == _ID_CHARACTERS and identity.isalnum():
        return identity
    return hashlib.sha256(identity.encode()).hexdigest()[:_ID_CHARACTERS]
