"""Keys change with everything that can change an answer, and with nothing else."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from app.adapters import AdapterFile
from app.batch.settings import JobSettings, comparable, differences, row_key
from app.openai.task import Embed, Task
from app.openai.tools import Tools
from runtimes.request import Constraint, Priority, SamplingParams

BASE = JobSettings("pebble-q8_0.gguf", "llamacpp", "aa", SamplingParams())
USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
TASK = Task((USER, ANSWER), ("c",))
WITH = tuple(replace(TASK, then=text) for text in (" a", " b"))
CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
FUNCTIONS = ({"name": "f"}, {"name": "g"})
OTHER = [
    Task((), ("c",)),
    Task((USER, ANSWER), ("d",)),
    Task(({**USER, "role": "system"}, ANSWER), ("c",)),
    Task((USER,), ("b", "c")),
    Task((), ("a", "b", "c")),
    replace(TASK, sampling=SamplingParams(seed=1)),
    replace(TASK, raw=True),
    Task(ids=(1, 2)),
    Task(ids=(1, 3)),
    Task(raw=True, ids=(1, 2)),
    replace(TASK, embed=Embed()),
    replace(TASK, embed=Embed(3)),
    replace(TASK, embed=Embed(packed=True)),
    *WITH,
    Task(parts=WITH),
    Task(parts=WITH[::-1]),
    Task(parts=WITH, labels=("a", "b")),
    Task(parts=WITH, labels=("x", "b")),
    replace(TASK, adapter=AdapterFile("poet", Path("a.gguf"), "aa")),
    replace(TASK, adapter=AdapterFile("poet", Path("a.gguf"), "bb")),
    Task((USER, {**ANSWER, "tool_calls": [CALL]}), ("c",)),
    replace(TASK, tools=Tools(FUNCTIONS[:1])),
    replace(TASK, tools=Tools(FUNCTIONS)),
    replace(TASK, tools=Tools(FUNCTIONS, required=True)),
]
SPECIAL = {
    "stop": ("x",),
    "logit_bias": ((3, -1.0),),
    "constraint": Constraint("regex", "a"),
    "thinking": "off",
}


def sampled(name: str, usual: Any) -> SamplingParams:
    """With a parameter that is not at its default."""
    by_type = {bool: not usual, int: 2 + (usual or 0), float: 0.5}
    return SamplingParams(**{name: SPECIAL.get(name, by_type.get(type(usual), 2))})


CHANGES: list[dict[str, Any]] = [
    {"fingerprint": "bb"},
    {"system": "Be brief."},
    {"raw": True},
    {"context": 512},
    {"task": "score"},
    {"computing": {"threads": 2}},
    *({"sampling": sampled(one.name, one.default)} for one in fields(SamplingParams)),
]


def key(task: Task = TASK, settings: JobSettings = BASE) -> bytes:
    return row_key(settings.digest(), task)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_setting_changes_the_key_and_is_named(change: dict[str, Any]) -> None:
    changed = replace(BASE, **change)
    assert key(settings=changed) != key()
    assert 1 <= len(differences(BASE.as_json(), changed)) <= 2  # a constraint has two parts


def test_every_question_has_a_key_of_its_own() -> None:
    assert len({key(task) for task in (TASK, *OTHER)}) == 1 + len(OTHER)
    assert key(replace(TASK, priority=Priority.LOW)) == key()


def test_keys_of_earlier_versions_are_still_the_same() -> None:
    assert row_key(b"", TASK).hex() == "405a7c5074eeb2de56e62e37c63362e6"
    raw = Task((), ("c",), SamplingParams(seed=1), raw=True)
    assert row_key(b"", raw).hex() == "0447666de26d5825308b9a8aa60fe928"
    older = BASE.as_json()  # which do not know every parameter
    del older["sampling"]["best_of"], older["sampling"]["min_tokens"]
    assert differences(older, BASE) == []
    changed = replace(BASE, sampling=SamplingParams(min_tokens=2))
    assert differences(older, changed) == ["sampling.min_tokens: 0 -> 2"]
    assert comparable(older) == comparable(BASE.as_json()) != comparable(changed.as_json())


def test_names_change_nothing() -> None:
    renamed = replace(BASE, model="other.gguf")
    assert renamed.digest() == BASE.digest()
    assert differences(BASE.as_json(), renamed) == []
    other = replace(BASE, model="pebble-onnx-int4", runtime="onnx", fingerprint="bb")
    assert 'model: "pebble-q8_0.gguf" -> "pebble-onnx-int4"' in differences(BASE.as_json(), other)
    adapters = (AdapterFile(name, Path(f"{name}.gguf"), "aa") for name in ("poet", "bard"))
    first, second = (key(replace(TASK, adapter=adapter)) for adapter in adapters)
    assert first == second
    beside = replace(BASE, adapters={"poet": "aa"})
    assert beside.digest() == BASE.digest()  # rows without one keep their answers
    assert differences(BASE.as_json(), beside) == ['adapters.poet: none -> "aa"']
    settings = replace(BASE, sampling=SamplingParams(stop=("a", "é")))
    assert json.loads(json.dumps(settings.as_json())) == settings.as_json()
