"""The body of a request to one of OpenAI's endpoints. Whatever it asks for and this engine lacks
makes it invalid by name."""

from collections.abc import Mapping
from typing import Any

from app.openai.sampling_body import NAMES, Endpoint, sampling_of
from app.openai.task import InputError, Task, kind, shown, task_at
from runtimes.request import SamplingParams

ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
}
_PROMPT = {"chat": "messages", "completions": "prompt"}
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


def body_task(body: Any, endpoint: Endpoint, defaults: SamplingParams) -> Task:
    """The task of a request's ``body``, its parameters on top of ``defaults``.

    Raises InputError naming what is missing, wrong or not supported.
    """
    if not isinstance(body, Mapping):
        raise InputError("wrong_type", f"body must be an object, not {kind(body)}")
    name = _PROMPT[endpoint]
    _check_names(body, NAMES[endpoint] | _IGNORED | {name})
    prompt = body.get(name)
    if prompt is None:
        raise InputError("missing_parameter", f"body has no {name!r}")
    if endpoint == "completions":
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise InputError(
                "unsupported_parameter",
                "prompt must be a text: lists of prompts and token ids are not supported",
            )
    elif not isinstance(prompt, list) or any(isinstance(part, str) for part in prompt):
        raise InputError("wrong_type", "messages must be a list of messages with roles")
    task = task_at(prompt, f"body.{name}")
    sampling = sampling_of(body, endpoint, defaults)
    return Task(task.history, task.turns, sampling, raw=endpoint == "completions")


def _check_names(body: Mapping[str, Any], known: frozenset[str]) -> None:
    for name, value in body.items():
        if name in known or value is None or value in _IDLE.get(name, ()):
            continue
        said = f"{name}: {shown(value)}" if name in _IDLE else name[:60]
        raise InputError("unsupported_parameter", f"{said} is not supported")
