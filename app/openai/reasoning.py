"""Parameters of request bodies that turn thoughts on and off and bound them, in each dialect.

Sources: OpenAI's ``reasoning_effort`` and ``reasoning``, Anthropic's ``thinking``, and
``chat_template_kwargs`` and ``thinking_budget_tokens`` as vLLM and llama-server name them.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def template_variables(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Variables of the chat template that the body of a chat completion sets. Raises InputError."""
    variables: Mapping[str, Any] | None = body.get("chat_template_kwargs")
    if variables is not None:
        require_object(variables, "chat_template_kwargs")
        check_bounds(variables, "chat_template_kwargs")
        try:
            check_variables(variables)
        except RequestError as error:
            raise InputError("invalid_value", f"chat_template_kwargs: {error}") from error
    return variables or None


# Each dialect's wishes, as the sampling parameters that a body sets.


def chat_reasoning(body: Mapping[str, Any]) -> dict[str, Any]:
    """Wishes in the body of a chat completion. Raises InputError."""
    return _effort(body.get("reasoning_effort"), "reasoning_effort") | _budget(body)


def response_reasoning(body: Mapping[str, Any]) -> dict[str, Any]:
    """Wishes in the body of a response (``reasoning``). Raises InputError."""
    given = body.get("reasoning")
    if given is None:
        return _budget(body)
    require_object(given, "reasoning")
    return _effort(given.get("effort"), "reasoning.effort") | _budget(body)


def message_reasoning(body: Mapping[str, Any]) -> dict[str, Any]:
    """Wishes in the body of Anthropic's messages (``thinking``). Raises InputError."""
    given = body.get("thinking")
    if given is None:
        return _budget(body)
    require_object(given, "thinking")
    kind = given.get("type")
    if kind == "disabled":
        return {"thinking": "off"}
    if kind not in ("enabled", "adaptive"):
        said = f"thinking.type must be enabled, adaptive or disabled, not {shown(kind)}"
        raise InputError("invalid_value", said)
    own = ("thinking.budget_tokens", given.get("budget_tokens"))
    return {"thinking": "on"} | _budget(body, own)


def _effort(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    level = _EFFORTS.get(value) if isinstance(value, str) else None
    if level is None:
        raise InputError("invalid_value", f"{name} must be one of {', '.join(_EFFORTS)}")
    return {"thinking": level}


def _budget(body: Mapping[str, Any], *own: tuple[str, Any]) -> dict[str, Any]:
    """The last number of tokens that is given, in a dialect's ``own`` field too; none for -1, which
    llama-server's clients say for any number."""
    found: dict[str, Any] = {}
    for name, value in (*((name, body.get(name)) for name in BUDGETS), *own):
        if value is None:
            continue
        if type(value) is not int:
            raise wrong_kind(name, "a whole number", value)
        if not -1 <= value <= MOST_THINK_TOKENS:
            raise InputError("invalid_value", f"{name} must be 0 or more, not {str(value)[:40]}")
        found = {} if value == -1 else {"think_tokens": value}
    return found
