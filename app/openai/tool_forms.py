"""How models write the calls of tools: what a chat template shows of it."""

from dataclasses import dataclass
from functools import lru_cache

from runtimes.chat import render_chat
from runtimes.errors import RequestError


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
_OWN = ToolForm(
    "<tool_call>",
    '\n{"name": "',
    '", "arguments": ',
    "}\n</tool_call>",
    separator="\n",
    each=True,
    told=False,
    markers=("<tool_call>", "</tool_call>"),
)
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
