"""The body of a request to one of OpenAI's endpoints. Whatever it asks for and this engine lacks
makes it invalid by name; what could not change the answer is left out.

Accepted beside OpenAI's parameters: all others of ``SamplingParams`` and ``structured_outputs``,
named as vLLM names them.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from app.openai.constraints import constraint_changes
from app.openai.task import Task, task_at
from app.openai.tools import ToolFields, Tools, tools_of
from app.openai.validation import (
    MOST_BIASES,
    MOST_MESSAGES,
    MOST_STOP_CHARACTERS,
    MOST_STOPS,
    Given,
    Ignored,
    InputError,
    JsonObject,
    as_switch,
    as_unicode,
    check_bounds,
    check_count,
    fields_of,
    require_object,
    shown,
    switch,
    wrong_kind,
)
from runtimes.errors import RequestError
from runtimes.request import (
    MOST_THINK_TOKENS,
    Priority,
    SamplingParams,
    ThinkingLevel,
    ThinkingPlace,
)
from runtimes.thinking import check_variables

Endpoint = Literal["chat", "completions", "embeddings"]
Generating = Literal["chat", "completions"]

ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
}
_PROMPT = {"chat": "messages", "completions": "prompt"}
# Who asks, what for and how it is billed, and what only hints at how to answer: nothing that makes
# an answer wrong.
HINTS = frozenset(
    "model user metadata store service_tier safety_identifier prompt_cache_key"
    " prompt_cache_retention verbosity prediction".split()
)
OF_SERVERS = frozenset({"priority", "reproducible"})  # a batch has its own
_TOOLS = {"tools", "tool_choice", "parallel_tool_calls"}
_PRIORITIES = {name: one for one in Priority for name in (one.name.lower(), str(int(one)))}
_MOST_INT = 2**31 - 1
_MOST_SEED = 2**63
_MOST_REMEMBERED = 2**14  # characters of a constraint that is kept for other requests


def body_task(
    body: Any,
    endpoint: Generating,
    defaults: SamplingParams,
    *,
    served: bool = False,
    strict: bool = False,
) -> Task:
    """The task of a request's ``body``, its parameters on top of ``defaults``. ``served``: it came
    by itself, not in a batch; ``strict``: what is not known is refused, not left out.

    Raises InputError naming what is missing, wrong or not supported.
    """
    ignored = _FIELDS[endpoint, served].check(body, strict=strict)
    prompt, tools, thoughts = body.get(_PROMPT[endpoint]), None, {}
    if prompt is None:
        raise InputError("missing_parameter", f"body has no {_PROMPT[endpoint]!r}")
    if endpoint == "chat":
        if not isinstance(prompt, list) or any(isinstance(part, str) for part in prompt):
            raise InputError("wrong_type", "messages must be a list of messages with roles")
        check_count(len(prompt), "messages", "messages", MOST_MESSAGES)
        task = replace(task_at(prompt, "body.messages"), variables=template_variables(body))
        thoughts = chat_reasoning(body)
        tools = tools_of(body, ToolFields(inside=True), ignored)
    else:
        task = replace(_text_task(prompt, body.get("suffix")), at=_place(body) if served else None)
        if task.at is not None:
            thoughts = chat_reasoning(body)
        elif served:  # no thought is told apart, and none is bounded
            for budget in sorted(BUDGETS):
                if body.get(budget) is not None:
                    ignored.note(budget, f"{budget} is not supported without thinking_at")
    sampling = sampling_of(body, endpoint, defaults, thoughts)
    return completed(task, body, tools, sampling, ignored, defaults)


def _text_task(prompt: Any, suffix: Any) -> Task:
    """A text that goes on, up to ``suffix`` if there is one. Raises InputError."""
    ids = are_ids(prompt)
    if not ids and not isinstance(prompt, str):
        said = "prompt must be a text or a list of token ids"
        raise InputError("unsupported_parameter", said)
    if suffix in (None, ""):
        return replace(Task(ids=tuple(prompt)) if ids else task_at(prompt, "body.prompt"), raw=True)
    if ids or not isinstance(suffix, str):
        raise InputError("wrong_type", "suffix must be a text, and so must the prompt before it")
    # The prompt may be empty: what is before the cursor.
    turns = (as_unicode(prompt, "prompt"),)
    return Task(turns=turns, raw=True, suffix=as_unicode(suffix, "suffix"))


def completed(
    task: Task,
    body: Given,
    tools: Tools | None,
    sampling: SamplingParams | None,
    ignored: Ignored,
    defaults: SamplingParams,
) -> Task:
    """``task`` with what was read in each dialect beside its prompt, and ``OF_SERVERS``. Raises
    InputError, also for an answer that can be no call beside its constraint."""
    constraint = (sampling or defaults).constraint
    if tools is not None and constraint is not None and constraint.kind != "json_schema":
        raise InputError("invalid_value", "tools need an answer that is a text or JSON")
    urgent = body.get("priority")
    return replace(
        task,
        sampling=sampling,
        priority=Priority.NORMAL if urgent is None else priority_of(urgent, "priority"),
        reproducible=switch(body, "reproducible"),
        tools=tools,
        ignored=tuple(ignored.names),
    )


def priority_of(value: Any, name: str) -> Priority:
    """By its name or its number. Raises InputError."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # whole numbers of a table's column that has gaps
    priority = _PRIORITIES.get(str(value).strip().lower())
    if priority is None:
        known = ", ".join(one.name.lower() for one in Priority)
        said = f"{name} must be one of {known} or 0 to 3, not {str(value)[:40]!r}"
        raise InputError("invalid_value", said)
    return priority


def _place(body: Given) -> ThinkingPlace | None:
    """The part that a text completion's prompt ends within; None where no thought is told apart.
    Raises InputError."""
    place: ThinkingPlace | None = body.get("thinking_at")
    if place not in (None, *(places := get_args(ThinkingPlace))):
        raise InputError("invalid_value", f"thinking_at must be one of {', '.join(places)}")
    return place


def are_ids(prompt: Any) -> bool:
    """Whether a prompt is given as its tokens."""
    return isinstance(prompt, list) and len(prompt) > 0 and all(type(one) is int for one in prompt)


# Thoughts: parameters that turn them on and off and bound them, in each dialect. Sources: OpenAI's
# ``reasoning_effort`` and ``reasoning``, Anthropic's ``thinking``, and ``chat_template_kwargs`` and
# ``thinking_budget_tokens`` as vLLM and llama-server name them.

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


def template_variables(body: Given) -> Given | None:
    """Variables of the chat template that the body of a chat completion sets. Raises InputError."""
    variables: Given | None = body.get("chat_template_kwargs")
    if variables is not None:
        require_object(variables, "chat_template_kwargs")
        check_bounds(variables, "chat_template_kwargs")
        try:
            check_variables(variables)
        except RequestError as error:
            raise InputError("invalid_value", f"chat_template_kwargs: {error}") from error
    return variables or None


# Each dialect's wishes, as the sampling parameters that a body sets.


def chat_reasoning(body: Given) -> JsonObject:
    """Wishes in the body of a chat completion. Raises InputError."""
    return _effort(body.get("reasoning_effort"), "reasoning_effort") | _budget(body)


def response_reasoning(body: Given) -> JsonObject:
    """Wishes in the body of a response (``reasoning``). Raises InputError."""
    given = body.get("reasoning")
    given = {} if given is None else given
    require_object(given, "reasoning")
    return _effort(given.get("effort"), "reasoning.effort") | _budget(body)


def message_reasoning(body: Given) -> JsonObject:
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


def _effort(value: Any, name: str) -> JsonObject:
    if value is None:
        return {}
    level = _EFFORTS.get(value) if isinstance(value, str) else None
    if level is None:
        raise InputError("invalid_value", f"{name} must be one of {', '.join(_EFFORTS)}")
    return {"thinking": level}


def _budget(body: Given, *own: tuple[str, Any]) -> JsonObject:
    """The last number of tokens that is given, in a dialect's ``own`` field too; none for -1, which
    llama-server's clients say for any number."""
    found: JsonObject = {}
    for name, value in (*((name, body.get(name)) for name in BUDGETS), *own):
        if value is None:
            continue
        if type(value) is not int:
            raise wrong_kind(name, "a whole number", value)
        if not -1 <= value <= MOST_THINK_TOKENS:
            raise InputError("invalid_value", f"{name} must be 0 or more, not {str(value)[:40]}")
        found = {} if value == -1 else {"think_tokens": value}
    return found


# Sampling parameters


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float):
        raise wrong_kind(name, "a number", value)
    if abs(value) > _MOST_INT:
        raise InputError("invalid_value", f"{name} is out of all bounds: {str(value)[:40]}")
    return float(value)


def _integer(value: Any, name: str) -> int:
    if type(value) is not int:
        raise wrong_kind(name, "a whole number", value)
    if name != "seed":
        _number(value, name)
    elif not -_MOST_SEED <= value < _MOST_SEED:
        raise InputError("invalid_value", f"{name} must fit 64 bits: {str(value)[:40]}")
    return value


def _stop(value: Any, name: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError("wrong_type", f"{name} must be a string or a list of strings")
    check_count(len(texts), name, "texts", MOST_STOPS)
    check_count(sum(map(len, texts)), name, "characters", MOST_STOP_CHARACTERS)
    return tuple(as_unicode(text, name) for text in texts)


def _logit_bias(value: Any, name: str) -> tuple[tuple[int, float], ...]:
    require_object(value, name, "an object from token ids to numbers")
    check_count(len(value), name, "ids", MOST_BIASES)
    pairs = []
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise InputError("invalid_value", f"{name}: {token[:40]!r} is not a token id")
        amount = _number(bias, f"{name}.{token}")
        if abs(amount) > 100:
            raise InputError("invalid_value", f"{name}.{token} must be from -100 to 100")
        pairs.append((int(token), amount))
    return tuple(sorted(pairs))


_READERS = {"int": _integer, "float": _number, "bool": as_switch}
_OWN_READERS = {"stop": _stop, "seed": _integer, "logit_bias": _logit_bias}
_READ_APART = frozenset(
    "logprobs top_logprobs best_of constraint prompt_logprobs thinking think_tokens".split()
)
# A body may have each parameter of ours: the field that it becomes, and what reads it. A later one
# of two for the same field wins.
_PLAIN: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    item.name: (item.name, _OWN_READERS.get(item.name) or _READERS[str(item.type)])
    for item in fields(SamplingParams)
    if item.name not in _READ_APART
} | {
    "max_completion_tokens": ("max_tokens", _integer),
    "repeat_penalty": ("repetition_penalty", _number),  # as clients of llama-server and Ollama say
}
_BOTH = _PLAIN.keys() | {"logprobs", "response_format", "structured_outputs"}
_NAMES: dict[Generating, frozenset[str]] = {
    "chat": frozenset(_BOTH | {"top_logprobs"}),
    "completions": frozenset(_BOTH - {"max_completion_tokens"} | {"best_of", "suffix"}),
}
CHAT_NAMES = _NAMES["chat"]
_FIELDS = {
    (endpoint, served): fields_of(
        names
        | {_PROMPT[endpoint]}
        | (_TOOLS | CHAT_REASONING if endpoint == "chat" else {"reasoning_effort"})
        | (OF_SERVERS if served else set())
        | (CHAT_REASONING - {"chat_template_kwargs"} | {"thinking_at"} if placed else set()),
        HINTS,
    )
    for endpoint, names in _NAMES.items()
    for served in (False, True)
    for placed in [served and endpoint == "completions"]
}


def sampling_of(
    body: Given,
    endpoint: Generating,
    defaults: SamplingParams,
    thoughts: Given,
) -> SamplingParams | None:
    """The body's own parameters on top of ``defaults``; None where it has none.
    ``null`` is ignored. ``thoughts``: the parameters for them, which each dialect reads.

    Raises InputError naming the parameter that has a wrong type or value.
    """
    changes: JsonObject = {**thoughts}
    for name, (field, read) in _PLAIN.items():
        if body.get(name) is not None:
            changes[field] = read(body[name], name)
    changes.update(_logprobs(body, endpoint))
    wanted = constraint_changes(body)
    if wanted.get("constraint", defaults.constraint) != defaults.constraint:
        changes.update(wanted)
    if endpoint == "completions" and body.get("best_of") is not None:
        changes["best_of"] = _integer(body["best_of"], "best_of")
    if not changes:
        return None
    constraint = changes.get("constraint")
    few = constraint is None or len(constraint.source) <= _MOST_REMEMBERED
    try:
        change = _changed if few else _changed.__wrapped__
        return change(defaults, tuple(changes.items()))
    except RequestError as error:
        raise InputError("invalid_value", str(error)) from error


@lru_cache(maxsize=256)
def _changed(defaults: SamplingParams, changes: tuple[tuple[str, Any], ...]) -> SamplingParams:
    """Rows of one file mostly ask for the same, and checking it takes longer than finding it."""
    return replace(defaults, **dict(changes))


def _logprobs(body: Given, endpoint: Generating) -> JsonObject:
    """In chat a switch and a number; for completions the number alone is the switch."""
    name = "logprobs" if endpoint == "completions" else "top_logprobs"
    top = body.get(name)
    wanted = top is not None if endpoint == "completions" else switch(body, "logprobs")
    if top is None:
        return {"logprobs": wanted} if body.get("logprobs") is not None else {}
    number = _integer(top, name)
    if not wanted:
        raise InputError("invalid_value", "top_logprobs needs logprobs: true")
    return {"logprobs": True, "top_logprobs": number}
