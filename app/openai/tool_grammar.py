"""The constraint by which an answer is a text, or calls of the tools with arguments that follow
their schemas."""

import json
import re
from collections.abc import Mapping
from typing import Any

from app.openai.tool_forms import ToolForm
from app.openai.tools import Tools
from runtimes.checks import JSON_WHITESPACE, quoted_refs
from runtimes.request import Constraint


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


def _json(schema: Mapping[str, Any]) -> str:
    spaces = {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
    return "%json " + json.dumps({**quoted_refs(schema), **spaces})
