"""Settings that decide a row's answer besides the row itself, and the key of both together."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

from app.openai.task import Task
from runtimes.chat import Message
from runtimes.request import Constraint, SamplingParams
from runtimes.untrusted import Fields, JsonObject

KEY_BYTES = 16
NO_KEY = bytes(KEY_BYTES)  # of rows that ask nothing


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Model, sampling and prompt style of a job."""

    model: str  # for people, as is the runtime
    runtime: str
    fingerprint: str  # two files with the same one are the same model
    sampling: SamplingParams
    system: str | None = None
    raw: bool = False
    context: int | None = None
    kv_type: str = "f16"
    rope: str | None = None
    task: str = "generate"  # what rows without a request ask for
    computing: Mapping[str, Any] | None = None  # what a reproducible job's last digits depend on
    adapters: Mapping[str, str] | None = None  # checksums by name
    first: Mapping[str, Any] | None = None  # what the answers of a smaller model are kept by

    def as_json(self) -> dict[str, Any]:
        """Return the settings of the journal's header, exactly as they are read back."""
        value: dict[str, Any] = json.loads(_canonical(asdict(self)))
        for name in ("computing", "adapters", "rope", "first"):
            if value[name] is None:
                del value[name]
        for name in ("thinking", "think_tokens"):  # as in journals from before there were any
            if value["sampling"][name] is None:
                del value["sampling"][name]
        if self.task == "generate":  # as in journals from before there were others
            del value["task"]
        return value

    def digest(self) -> bytes:
        """A hash of everything that can change an answer."""
        decisive = self.as_json()
        del decisive["model"], decisive["runtime"]
        decisive.pop("adapters", None)  # each row's key has its own
        decisive.pop("first", None)  # the answers of this model are the same
        decisive["sampling"] = _decisive(self.sampling)
        return hashlib.sha256(_canonical(decisive)).digest()


def row_key(settings_digest: bytes, task: Task) -> bytes:
    """The identity of a row's answer: same key, same question to the same model in the same way."""
    digest = hashlib.blake2b(settings_digest, digest_size=KEY_BYTES)
    digest.update(_canonical(_question(task)))
    return digest.digest()


def _question(task: Task) -> list[Any]:
    question: list[Any] = [[_said(message) for message in task.history], list(task.turns)]
    if task.tools is not None:
        question.append(asdict(task.tools))
    if task.sampling is not None:
        question.append(_decisive(task.sampling))
    if task.raw:
        question.append("raw")
    more = {
        "ids": task.ids,
        "then": task.then,
        "embed": None if task.embed is None else asdict(task.embed),
        "parts": [_question(part) for part in task.parts],
        "labels": task.labels,
    }
    later: JsonObject = {  # not in the keys of rows from before there were any
        "adapter": task.adapter and task.adapter.digest,
        "suffix": task.suffix,
        "variables": task.variables,
    }
    more |= {name: value for name, value in later.items() if value is not None}
    if any(value not in (None, (), []) for value in more.values()):
        question.append(more)
    return question


def _said(message: Message) -> list[Any]:
    """Role and text, and what only calls of tools have."""
    more = {name: value for name, value in message.items() if name not in ("role", "content")}
    return [message["role"], message["content"], *([more] if more else [])]


@lru_cache(maxsize=256)
def _decisive(sampling: SamplingParams) -> JsonObject:
    """Return the parameters that are not at their defaults: a parameter that is added one day
    changes no key. Callers must not change the result: most rows of a file share one."""
    defaults = SamplingParams()
    return {
        field.name: asdict(value) if isinstance(value, Constraint) else value
        for field in fields(sampling)
        if (value := getattr(sampling, field.name)) != getattr(defaults, field.name)
    }


def comparable(settings: Fields) -> JsonObject:
    """A journal's settings without the names that are for people only, and without the machine:
    equal ones ask for the same answers. An older journal says nothing of parameters that came
    later: they were at their defaults."""
    aside = ("model", "runtime", "computing")
    return {name: value for name, value in _whole(settings).items() if name not in aside}


def _whole(settings: Fields) -> JsonObject:
    usual = json.loads(_canonical(asdict(SamplingParams())))
    return {**settings, "sampling": {**usual, **settings.get("sampling", {})}}


def differences(before: Fields, now: JobSettings) -> list[str]:
    """Return the settings that changed since a journal was begun, a line for each."""
    if before.get("first") is None:  # answers of the larger model alone are as good
        now = replace(now, first=None)
    old, new = _flat(_whole(before)), _flat(now.as_json())
    if old.get("fingerprint") == new.get("fingerprint"):
        # The same file under another name gives the same answers.
        for name in ("model", "runtime"):
            old.pop(name, None)
            new.pop(name, None)
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            lines.append(f"{name}: {_show(old.get(name))} -> {_show(new.get(name))}")
    return lines


def _flat(settings: Fields, prefix: str = "") -> JsonObject:
    flat: JsonObject = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _show(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _canonical(value: Any) -> bytes:
    """One spelling per value. Non-ASCII is escaped, so that any string can be hashed."""
    return _ENCODER.encode(value).encode("ascii")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))  # making one takes longer
