"""A task as one model is asked it: what depends on the model's chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.openai.task import Task
from app.openai.tool_forms import ToolForm, form_of
from app.openai.tool_grammar import tools_constraint
from app.openai.tool_parser import ToolParser
from app.openai.tool_prompt import form_messages, own_messages
from runtimes.chat import Message
from runtimes.errors import RequestError
from runtimes.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Asked:
    """What the model is given."""

    messages: list[Message]
    params: SamplingParams
    tools: list[dict[str, Any]] | None = None  # for the template
    form: ToolForm | None = None  # in which the answer calls tools; None: it calls none
    names: tuple[str, ...] = ()

    def parser(self) -> ToolParser | None:
        """What reads one answer; None where it is a text."""
        return None if self.form is None else ToolParser(self.form, self.names)


def asked(
    task: Task, messages: Sequence[Message], template: str | None, params: SamplingParams
) -> Asked:
    """``messages`` are those of the task, or of a later turn of it, and ``params`` what it is
    sampled with if it has no tools.

    Raises RequestError where the beginning of an answer is given that could break its form.
    """
    if task.raw:
        return Asked(list(messages), params)
    said = [_with_known_role(message, template) for message in messages]
    tools = task.tools
    formed = tools is not None or params.constraint is not None
    if formed and said[-1]["role"] == "assistant":
        raise RequestError(
            "the last message is the assistant's: an answer that is begun so can have neither tools"
            " nor a form that it keeps to"
        )
    if tools is None and not any("tool_calls" in m or m["role"] == "tool" for m in said):
        return Asked(said, params)
    form = form_of(template)
    said = form_messages(said, form) if form.told else own_messages(said, tools)
    if tools is None:
        return Asked(said, params)
    constraint = tools_constraint(tools, form, params.constraint)
    names = tuple(function["name"] for function in tools.functions)
    told = tools.json() if form.told else None
    return Asked(said, replace(params, constraint=constraint), told, form, names)


def _with_known_role(message: Message, template: str | None) -> Message:
    """OpenAI's new name for the system is known to few templates."""
    if message["role"] != "developer" or "developer" in (template or ""):
        return message
    known: Mapping[str, Any] = {**message, "role": "system"}
    return known
