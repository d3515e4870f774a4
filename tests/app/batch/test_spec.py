"""A job's command line and what it says are the same, whichever comes first."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from app.batch.spec import BatchSpec, said, spec_from, spec_json
from app.cli.commands.batch import arguments_of, batch_spec

USUAL = BatchSpec("in", "out")
OTHER = {int: 9, float: 0.1234567, str: "- two\n'quoted' = so", Path: Path("a b")}
CHECKED = {"kv_type": "q8_0:q4_0", "rope": "yarn:2.5"}  # texts that may not be any


def other(kind: Any, usual: object) -> Any:
    """A value of a type that is not the usual one."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        values = {one.name: other(hints[one.name], one.default) for one in fields(kind)}
        return kind(**values | {name: text for name, text in CHECKED.items() if name in values})
    if get_origin(kind) is Literal:
        return next(value for value in reversed(get_args(kind)) if value != usual)
    if get_origin(kind) in (list, tuple):
        return get_origin(kind)(["a", "--b = c=d"])
    if kind is bool:
        return not usual
    return OTHER[kind] if kind in OTHER else other(get_args(kind)[0], usual)  # the rest is None


FULL: BatchSpec = replace(other(BatchSpec, None), input="./-in.txt", output="out of it.jsonl")


@pytest.mark.parametrize("spec", [USUAL, FULL], ids=["usual", "full"])
def test_a_job_is_what_its_command_line_and_its_journal_say(spec: BatchSpec) -> None:
    assert batch_spec(tuple(arguments_of(spec))) == spec
    assert spec_from(json.loads(json.dumps(spec_json(spec)))) == spec
    assert spec_from(spec_json(spec) | {"of a later version": 1}) == spec


def test_what_is_usual_is_not_said() -> None:
    assert list(arguments_of(USUAL)) == ["in", "out"]
    usual = dict(said(USUAL))
    assert all(value != usual[name] for name, value in said(FULL))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"input": 1}, {"output": ["a"]}, {"limit": "3"}, {"limit": True}, {"raw": 1}),
        *({"task": "dance"}, {"choice": "yes"}, {"choice": [1]}, {"top_p": "1"}, {"template": 3}),
        *({"slots": 1.5}, {"seed": [1]}, {"task": ["embed"]}),
    ],
)
def test_a_journal_may_say_anything(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        spec_from({**spec_json(USUAL), **wrong})
