"""Thoughts of models: the texts between which a thought stands, and how a template turns it on.

The tags are those of Qwen, DeepSeek, Granite, SmolLM and their relatives; the channels are those of
gpt-oss (OpenAI's harmony response format).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from runtimes.chat import THINKING, Variables, template_names
from runtimes.errors import RequestError
from runtimes.request import ThinkingLevel, ThoughtForm

# Variables of templates that turn thoughts on and off, and the one that says how long they are.
_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"
# Variables of a template that no request may set: the renderer gives them.
_OWN = frozenset("messages tools documents add_generation_prompt bos_token eos_token".split())

_CHANNELS = ThoughtForm(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final<|message|>",
)


def thought_form(template: str | None) -> ThoughtForm | None:
    """The form of the thoughts that a chat template knows; None where it knows none."""
    if template is None:
        return None
    if "<|channel|>" in template and "analysis" in template:
        return _CHANNELS
    for name in THINKING:
        if f"<{name}>" in template or f"</{name}>" in template:
            return ThoughtForm(f"<{name}>", f"</{name}>")
    return None


@dataclass(frozen=True, slots=True)
class ThinkingChoice:
    """Meaning of a level of thinking for one template."""

    variables: Variables  # of the template
    budget: int | None = None  # 0 where thoughts can only be kept empty
    expected: bool = True
    unknown: str | None = None  # why the level changes nothing, for people


def choice_of(template: str | None, level: ThinkingLevel | None) -> ThinkingChoice:
    """How a template is told the ``level``. A template without a switch, whose model thinks all the
    same, gets an empty thought for ``off``."""
    if level is None:
        return ThinkingChoice({})
    names = template_names(template) if template is not None else frozenset[str]()
    variables: dict[str, Any] = {name: level != "off" for name in _SWITCHES if name in names}
    if level in ("low", "medium", "high"):
        if _EFFORT in names:
            variables[_EFFORT] = level
        elif variables:
            return ThinkingChoice(
                variables, unknown=f"the chat template knows no effort: {level} turns thinking on"
            )
    if variables:
        return ThinkingChoice(variables, expected=level != "off")
    if level == "off":
        if thought_form(template) is None:
            return ThinkingChoice({})
        return ThinkingChoice({}, budget=0)
    why = "the chat template cannot turn thinking on"
    if thought_form(template) is not None:
        why = "the chat template has no switch: the model thinks as it always does"
    return ThinkingChoice({}, unknown=why)


def switched_off(variables: Variables) -> bool:
    """Whether a template's variables turn its thoughts off."""
    return any(variables.get(name) is False for name in _SWITCHES)


def check_variables(variables: Variables) -> None:
    """Raises RequestError for a variable of a template that is the renderer's own."""
    for name in variables:
        if name in _OWN or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name):
            raise RequestError(f"{name[:60]!r} is no variable of a chat template that can be set")
