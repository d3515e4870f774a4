"""Keys change with everything that can change an answer, and with nothing else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from app.adapters import AdapterFile
from app.batch.settings import JobSettings, comparable, differences, row_key
from app.openai.task import Embed, Task
from app.openai.tools import Tools
from runtimes.request import Priority, SamplingParams

BASE = JobSettings("pebble-q8_0.gguf", "llamacpp", "aa", SamplingParams())
TASK = Task(({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}), ("c",))
WITH = [dataclasses.replace(TASK, then=text) for text in (" a", " b")]
OTHER = [
    Task(ids=(1, 2)),
    Task(ids=(1, 3)),
    Task(raw=True, ids=(1, 2)),
    dataclasses.replace(TASK, embed=Embed()),
    dataclasses.replace(TASK, embed=Embed(3)),
    dataclasses.replace(TASK, embed=Embed(packed=True)),
    *WITH,
    Task(parts=tuple(WITH)),
    Task(parts=tuple(WITH[::-1])),
    Task(parts=tuple(WITH), labels=("a", "b")),
    Task(parts=tuple(WITH), labels=("x", "b")),
    dataclasses.replace(TASK, adapter=AdapterFile("poet", Path("a.gguf"), "aa")),
    dataclasses.replace(TASK, adapter=AdapterFile("poet", Path("a.gguf"), "bb")),
]
CHANGES: list[dict[str, Any]] = [
    {"fingerprint": "bb"},
    {"system": "Be brief."},
    {"raw": True},
    {"context": 512},
    {"task": "score"},
    {"computing": {"threads": 2}},
    *(
        {"sampling": SamplingParams(**change)}
        for change in (
            {"max_tokens": 5},
            {"temperature": 0.7},
            {"top_k": 4},
            {"top_p": 0.9},
            {"min_p": 0.1},
            {"repetition_penalty": 1.1},
            {"presence_penalty": 0.1},
            {"frequency_penalty": 0.1},
            {"seed": 1},
            {"stop": ("x",)},
            {"ignore_eos": True},
            {"logprobs": True},
            {"top_logprobs": 2},
            {"logit_bias": ((3, -1.0),)},
            {"min_tokens": 2},
            {"n": 2},
            {"best_of": 3},
        )
    ),
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_setting_changes_the_key_and_is_named(change: dict[str, Any]) -> None:
    changed = dataclasses.replace(BASE, **change)
    assert row_key(changed.digest(), TASK) != row_key(BASE.digest(), TASK)
    assert len(differences(BASE.as_json(), changed)) == 1


def test_a_renamed_file_is_the_same_model() -> None:
    renamed = dataclasses.replace(BASE, model="other.gguf")
    assert renamed.digest() == BASE.digest()
    assert differences(BASE.as_json(), renamed) == []


def test_a_renamed_adapter_is_the_same_and_a_set_of_them_is_told() -> None:
    one, other = (AdapterFile(name, Path(f"{name}.gguf"), "aa") for name in ("poet", "bard"))
    first, second = (dataclasses.replace(TASK, adapter=adapter) for adapter in (one, other))
    assert row_key(BASE.digest(), first) == row_key(BASE.digest(), second)
    beside = dataclasses.replace(BASE, adapters={"poet": "aa"})
    assert beside.digest() == BASE.digest()  # rows without one keep their answers
    assert differences(BASE.as_json(), beside) == ['adapters.poet: none -> "aa"']


def test_another_model_is_named() -> None:
    other = dataclasses.replace(BASE, model="pebble-onnx-int4", runtime="onnx", fingerprint="bb")
    assert 'model: "pebble-q8_0.gguf" -> "pebble-onnx-int4"' in differences(BASE.as_json(), other)


def test_as_json_is_what_is_read_back() -> None:
    settings = dataclasses.replace(BASE, sampling=SamplingParams(stop=("a", "é")))
    assert json.loads(json.dumps(settings.as_json())) == settings.as_json()


@pytest.mark.parametrize(
    "other",
    [
        Task((), ("c",)),
        Task(({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}), ("d",)),
        Task(({"role": "system", "content": "a"}, {"role": "assistant", "content": "b"}), ("c",)),
        Task(({"role": "user", "content": "a"},), ("b", "c")),
        Task((), ("a", "b", "c")),
        dataclasses.replace(TASK, sampling=SamplingParams(seed=1)),
        dataclasses.replace(TASK, raw=True),
        *OTHER,
    ],
)
def test_other_rows_have_other_keys(other: Task) -> None:
    assert row_key(BASE.digest(), other) != row_key(BASE.digest(), TASK)


def test_whatever_is_asked_beside_answers_has_a_key_of_its_own() -> None:
    assert len({row_key(BASE.digest(), task) for task in OTHER}) == len(OTHER)


def test_a_key_of_an_earlier_version_is_still_the_same() -> None:
    assert row_key(b"", TASK).hex() == "405a7c5074eeb2de56e62e37c63362e6"
    assert (
        row_key(b"", Task((), ("c",), SamplingParams(seed=1), raw=True)).hex()
        == "0447666de26d5825308b9a8aa60fe928"
    )


def test_what_the_row_is_besides_its_question_is_not_in_its_key() -> None:
    other = dataclasses.replace(TASK, priority=Priority.LOW)
    assert row_key(BASE.digest(), other) == row_key(BASE.digest(), TASK)


def test_a_parameter_that_an_older_journal_does_not_know_changes_nothing() -> None:
    older = BASE.as_json()
    del older["sampling"]["best_of"], older["sampling"]["min_tokens"]
    assert differences(older, BASE) == []
    changed = dataclasses.replace(BASE, sampling=SamplingParams(min_tokens=2))
    assert differences(older, changed) == ["sampling.min_tokens: 0 -> 2"]
    assert comparable(older) == comparable(BASE.as_json()) != comparable(changed.as_json())


def test_tools_and_their_calls_are_part_of_the_question() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    said = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": ""})
    called = (said[0], {**said[1], "tool_calls": [call]})
    functions = ({"name": "f"}, {"name": "g"})
    tasks = [
        Task(said, ("go on",)),
        Task(called, ("go on",)),
        Task(said, ("go on",), tools=Tools(functions[:1])),
        Task(said, ("go on",), tools=Tools(functions)),
        Task(said, ("go on",), tools=Tools(functions, required=True)),
    ]
    assert len({row_key(b"settings", task) for task in tasks}) == len(tasks)
