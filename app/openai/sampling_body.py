"""Sampling parameters in the body of a request, as OpenAI's API names them.

Accepted beside OpenAI's: ``top_k``, ``min_p``, ``repetition_penalty``, ``min_tokens`` and
``ignore_eos`` and ``structured_outputs``, named as vLLM names them.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Literal

from app.openai.constraint_body import NAMES as CONSTRAINTS
from app.openai.constraint_body import constraint_changes
from app.openai.task import InputError, as_unicode, kind
from runtimes.errors import RequestError
from runtimes.request import SamplingParams

Endpoint = Literal["chat", "completions"]

_MOST_INT = 2**31 - 1
_MOST_SEED = 2**63
_MOST_STOPS = 64
_MOST_BIASES = 1024


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError("wrong_type", f"{name} must be a number, not {kind(value)}")
    return float(_bounded(value, name))


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError("wrong_type", f"{name} must be a whole number, not {_shown(value)}")
    if name != "seed":
        _bounded(value, name)
    elif not -_MOST_SEED <= value < _MOST_SEED:
        raise InputError("invalid_value", f"{name} must fit 64 bits: {str(value)[:40]}")
    return value


def _bounded(value: float, name: str) -> float:
    if abs(value) > _MOST_INT:
        raise InputError("invalid_value", f"{name} is out of all bounds: {str(value)[:40]}")
    return value


def _boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InputError("wrong_type", f"{name} must be true or false, not {_shown(value)}")
    return value


def _stop(value: Any, name: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError("wrong_type", f"{name} must be a string or a list of strings")
    if len(texts) > _MOST_STOPS:
        raise InputError("invalid_value", f"{name} has {len(texts):,} texts, above {_MOST_STOPS}")
    return tuple(as_unicode(text, name) for text in texts)


def _logit_bias(value: Any, name: str) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping):
        raise InputError(
            "wrong_type", f"{name} must be an object from token ids to numbers, not {kind(value)}"
        )
    if len(value) > _MOST_BIASES:
        raise InputError("invalid_value", f"{name} has {len(value):,} ids, above {_MOST_BIASES}")
    pairs = []
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise InputError("invalid_value", f"{name}: {token[:40]!r} is not a token id")
        amount = _number(bias, f"{name}.{token}")
        if abs(amount) > 100:
            raise InputError("invalid_value", f"{name}.{token} must be from -100 to 100")
        pairs.append((int(token), amount))
    return tuple(sorted(pairs))


_READERS = {"int": _integer, "float": _number, "bool": _boolean}
_OWN_READERS = {"stop": _stop, "seed": _integer, "logit_bias": _logit_bias}
_READ_APART = {"logprobs", "top_logprobs", "best_of", "constraint"}
# A body may have each parameter of ours: the field that it becomes, and what reads it. A later one
# of two for the same field wins.
_PLAIN: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    item.name: (item.name, _OWN_READERS.get(item.name) or _READERS[str(item.type)])
    for item in fields(SamplingParams)
    if item.name not in _READ_APART
} | {"max_completion_tokens": ("max_tokens", _integer)}
NAMES: dict[Endpoint, frozenset[str]] = {
    "chat": frozenset(_PLAIN.keys() | {"logprobs", "top_logprobs"} | CONSTRAINTS),
    "completions": frozenset(
        _PLAIN.keys() - {"max_completion_tokens"} | {"logprobs", "best_of"} | CONSTRAINTS
    ),
}


def sampling_of(
    body: Mapping[str, Any], endpoint: Endpoint, defaults: SamplingParams
) -> SamplingParams | None:
    """The body's own parameters on top of ``defaults``; None where it has none.
    ``null`` is ignored.

    Raises InputError naming the parameter that has a wrong type or value.
    """
    changes: dict[str, Any] = {}
    for name, (field, read) in _PLAIN.items():
        if name in NAMES[endpoint] and body.get(name) is not None:
            changes[field] = read(body[name], name)
    changes.update(_logprobs(body, endpoint))
    wanted = constraint_changes(body)
    if wanted.get("constraint", defaults.constraint) != defaults.constraint:
        changes.update(wanted)
    if endpoint == "completions" and body.get("best_of") is not None:
        changes["best_of"] = _integer(body["best_of"], "best_of")
    if not changes:
        return None
    try:
        return _changed(defaults, tuple(changes.items()))
    except RequestError as error:
        raise InputError("invalid_value", str(error)) from error


@lru_cache(maxsize=256)
def _changed(defaults: SamplingParams, changes: tuple[tuple[str, Any], ...]) -> SamplingParams:
    """Rows of one file mostly ask for the same, and checking it takes longer than finding it."""
    return replace(defaults, **dict(changes))


def _logprobs(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """In chat a switch and a number; for completions the number alone is the switch."""
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if endpoint == "completions":
        if wanted is None:
            return {}
        return {"logprobs": True, "top_logprobs": _integer(wanted, "logprobs")}
    changes: dict[str, Any] = {}
    if wanted is not None:
        changes["logprobs"] = _boolean(wanted, "logprobs")
    if top is not None:
        changes["top_logprobs"] = _integer(top, "top_logprobs")
        if not changes.get("logprobs"):
            raise InputError("invalid_value", "top_logprobs needs logprobs: true")
    return changes


def _shown(value: Any) -> str:
    return str(value)[:40] if isinstance(value, float) else kind(value)
