"""Rows that are lines of an OpenAI batch: a request each, with ``custom_id``, ``method``, ``url``
and ``body``. Whatever such a request asks for and this engine lacks makes the row invalid by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.batch.input.tasks import MISSING, BadRowError, Style, Task, as_unicode, kind, task_at
from app.openai.sampling_body import NAMES, sampling_of
from runtimes.request import SamplingParams

_STYLES: dict[str, Style] = {
    "/v1/chat/completions": "openai-chat",
    "/v1/completions": "openai-completions",
}
_PROMPT = {"openai-chat": "messages", "openai-completions": "prompt"}
# Who asks, what for and how it is billed: nothing that changes an answer.
_IGNORED = frozenset(
    "model user metadata store service_tier safety_identifier prompt_cache_key".split()
)
# What is not supported, with the values that ask for nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "modalities": (["text"],),
    "echo": (False,),
    "suffix": ("",),
}


def is_request(row: Mapping[str, Any]) -> bool:
    """Whether a row was meant as a line of an OpenAI batch, well made or not."""
    if "prompt" in row or "messages" in row:
        return False
    if "custom_id" in row:
        return "body" in row or "url" in row
    return isinstance(row.get("body"), Mapping) and ("url" in row or "method" in row)


def style_of(row: Mapping[str, Any]) -> Style:
    """Which endpoint a request is for; chat where it does not say so rightly."""
    url = row.get("url")
    return _STYLES.get(url, "openai-chat") if isinstance(url, str) else "openai-chat"


def request_task(row: Mapping[str, Any], job: SamplingParams) -> Task:
    """The task of a request, its parameters on top of the job's.

    Raises BadRowError naming what is missing, wrong or not supported.
    """
    identity = row.get("custom_id", MISSING)
    if not isinstance(identity, str) or not identity:
        raise BadRowError("missing_parameter", f"custom_id must be a text, not {_named(identity)}")
    as_unicode(identity, "custom_id")  # by which its answer has to be found
    method = row.get("method", MISSING)
    if method != "POST":
        raise BadRowError("invalid_value", f'method must be "POST", not {_named(method)}')
    url = row.get("url", MISSING)
    if not isinstance(url, str) or url not in _STYLES:
        raise BadRowError(
            "unsupported_url", f"url must be {' or '.join(_STYLES)}, not {_named(url)}"
        )
    style = _STYLES[url]
    body = row.get("body", MISSING)
    if not isinstance(body, Mapping):
        raise BadRowError("wrong_type", f"body must be an object, not {kind(body)}")
    _check_names(body, style)
    name = _PROMPT[style]
    if body.get(name) is None:
        raise BadRowError("missing_parameter", f"body has no {name!r}")
    prompt = body[name]
    if style == "openai-completions":
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise BadRowError(
                "unsupported_parameter",
                "prompt must be a text: lists of prompts and token ids are not supported",
            )
    elif not isinstance(prompt, list) or any(isinstance(part, str) for part in prompt):
        raise BadRowError("wrong_type", "messages must be a list of messages with roles")
    task = task_at(prompt, f"body.{name}")
    return Task(task.history, task.turns, sampling_of(body, style, job), style=style)


def _check_names(body: Mapping[str, Any], style: Style) -> None:
    known = NAMES[style] | _IGNORED | {_PROMPT[style]}
    for name, value in body.items():
        if name in known or value is None or value in _IDLE.get(name, ()):
            continue
        shown = f"{name}: {_named(value)}" if name in _IDLE else name[:60]
        raise BadRowError("unsupported_parameter", f"{shown} is not supported")


def _named(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return repr(value[:60])
        case _:
            return kind(value)
