"""Parameters of request bodies that turn thoughts on and off and bound them, in each dialect.

Sources: OpenAI's ``reasoning_effort`` and ``reasoning``, Anthropic's ``thinking``, and
``chat_template_kwargs`` and ``thinking_budget_tokens`` as vLLM and llama-server name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.openai.validation import InputError, check_bounds, require_object, shown, wrong_kind
from runtimes.errors import RequestError
from runtimes.request import MOST_THINK_TOKENS, ThinkingLevel
from runtimes.thinking import check_variables

BUDGETS = ("think_tokens", "thinking_budget_tokens")  # names in the bodies of every dialect
# Names in the bodies of chat completions.
CHAT_REASONING = frozenset({"reasoning_effort", "chat_template_kwargs", *BUDGETS})
_EFFORTS: dict[str, ThinkingLevel] = {
    "none": "off",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Wishes of one body. ``budget``: tokens of a thought at most."""

    level: ThinkingLevel | None = None
    budget: int | None = None
    variables: Mapping[str, Any] | None = None  # of the chat template

    def changes(self) -> dict[str, Any]:
        """Sampling parameters that the body sets."""
        given = {"thinking": self.level, "think_tokens": self.budget}
        return {name: value for name, value in given.items() if value is not None}


def chat_reasoning(body: Mapping[str, Any]) -> Reasoning:
    """Wishes in the body of a chat completion. Raises InputError."""
    variables = body.get("chat_template_kwargs")
    if variables is not None:
        require_object(variables, "chat_template_kwargs")
        check_bounds(variables, "chat_template_kwargs")
        try:
            check_variables(variables)
        except RequestError as error:
            raise InputError("invalid_value", f"chat_template_kwargs: {error}") from error
    effort = _effort(body.get("reasoning_effort"), "reasoning_effort")
    return Reasoning(effort, _given_budget(body), variables or None)


def response_reasoning(body: Mapping[str, Any]) -> Reasoning:
    """Wishes in the body of a response (``reasoning``). Raises InputError."""
    given = body.get("reasoning")
    if given is None:
        return Reasoning(None, _given_budget(body))
    require_object(given, "reasoning")
    return Reasoning(_effort(given.get("effort"), "reasoning.effort"), _given_budget(body))


def message_reasoning(body: Mapping[str, Any]) -> Reasoning:
    """Wishes in the body of Anthropic's messages (``thinking``). Raises InputError."""
    given = body.get("thinking")
    if given is None:
        return Reasoning(None, _given_budget(body))
    require_object(given, "thinking")
    kind = given.get("type")
    if kind == "disabled":
        return Reasoning("off")
    if kind not in ("enabled", "adaptive"):
        said = f"thinking.type must be enabled, adaptive or disabled, not {shown(kind)}"
        raise InputError("invalid_value", said)
    tokens = given.get("budget_tokens")
    budget = _given_budget(body)
    return Reasoning("on", budget if tokens is None else _budget(tokens, "thinking.budget_tokens"))


def _effort(value: Any, name: str) -> ThinkingLevel | None:
    if value is None:
        return None
    level = _EFFORTS.get(value) if isinstance(value, str) else None
    if level is None:
        raise InputError("invalid_value", f"{name} must be one of {', '.join(_EFFORTS)}")
    return level


def _given_budget(body: Mapping[str, Any]) -> int | None:
    given = [_budget(body[name], name) for name in BUDGETS if body.get(name) is not None]
    return given[-1] if given else None


def _budget(value: Any, name: str) -> int | None:
    """A number of tokens; None for -1, which llama-server's clients say for any number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_kind(name, "a whole number", value)
    if value == -1:
        return None
    if not 0 <= value <= MOST_THINK_TOKENS:
        raise InputError("invalid_value", f"{name} must be 0 or more, not {str(value)[:40]}")
    return value
