"""A job's command line and what it says are the same, whichever comes first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from app.batch.spec import (
    BatchAdapters,
    BatchSpec,
    InputOptions,
    OutputOptions,
    RunningOptions,
    SampleOptions,
    spec_from,
    spec_json,
)
from app.cli.batch_arguments import arguments_of, batch_spec
from app.options import ConstraintOptions, ModelOptions, PlanOptions, SamplingOptions

USUAL = BatchSpec("in", "out")
FULL = BatchSpec(
    "./-in.txt",
    "out of it.jsonl",
    "a model",
    system="- brief,\n'quoted' = so",
    raw=True,
    slots=3,
    reproducible=True,
    test=True,
    force=True,
    fresh=True,
    sampling=SamplingOptions(
        7,
        0.1234567,
        4,
        0.9,
        0.1,
        1.1,
        -0.2,
        0.3,
        min_tokens=2,
        seed=5,
        stop=["a", "--b"],
        thinking="off",
        think_tokens=9,
    ),
    constraints=ConstraintOptions('{"type": "object"}', "[a-z]+", ["yes", "not = this"], Path("g")),
    samples=SampleOptions(2, 3, logprobs=True, top_logprobs=4),
    rows=InputOptions(
        "embed", 3, "a.b", Path("t.j2"), "csv", "p", "s", 9, strict=True, dry_run=True
    ),
    out=OutputOptions("openai", False, True, "1/2", Path("r.json")),
    running=RunningOptions(1.5, 0, 60.0, "auto", "local", skip_failed=True),
    options=ModelOptions("q8_0", "a.gguf", 99, 2),
    adapters=BatchAdapters(["a.gguf", "b = c=d.gguf"]),
    engine=PlanOptions(
        "memory", "8", "q4_0", "on", 64, False, 96, -1, "Vulkan0", True, True, "small.gguf"
    ),
)


def values(said: Any) -> Iterator[Any]:
    for field in fields(said):
        value = getattr(said, field.name)
        yield from values(value) if is_dataclass(value) else [value]


@pytest.mark.parametrize("spec", [USUAL, FULL])
def test_a_job_is_what_its_command_line_says(spec: BatchSpec) -> None:
    assert batch_spec(tuple(arguments_of(spec))) == spec


@pytest.mark.parametrize("spec", [USUAL, FULL])
def test_a_job_is_what_its_journal_says(spec: BatchSpec) -> None:
    assert spec_from(json.loads(json.dumps(spec_json(spec)))) == spec
    assert spec_from(spec_json(spec) | {"of a later version": 1}) == spec


@pytest.mark.parametrize(
    "wrong",
    [
        *({"input": 1}, {"output": ["a"]}, {"limit": "3"}, {"limit": True}, {"raw": 1}),
        *({"task": "dance"}, {"choice": "yes"}, {"choice": [1]}, {"top_p": "1"}, {"template": 3}),
        *({"slots": 1.5}, {"seed": [1]}, {"task": ["embed"]}),
    ],
)
def test_a_journal_may_say_anything(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        spec_from({**spec_json(USUAL), **wrong})


def test_what_is_usual_is_not_said() -> None:
    assert list(arguments_of(USUAL)) == ["in", "out"]
    assert all(a != b for a, b in zip(values(FULL), values(USUAL), strict=True))


@pytest.mark.parametrize(
    "arguments", [(), ("in", "out", "--no-such"), ("in", "out", "--limit=0"), ("--help",)]
)
def test_what_the_command_refuses_says_nothing(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch_spec(arguments) is None
    assert capsys.readouterr() == ("", "")
