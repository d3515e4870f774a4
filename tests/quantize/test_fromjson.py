from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest

from quantize.fromjson import from_json


@dataclass(frozen=True)
class Inner:
    kind: Literal["a", "b"]
    pair: tuple[str, float] = ("x", 0.5)


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    by_name: dict[str, tuple[int, ...]] = field(default_factory=dict)


def test_what_asdict_made_is_read_back():
    for value in (
        Outer("one"),
        Outer("two", Inner("a"), (Inner("b", ("y", 1.0)), Inner("a")), {"n": (1, 2)}),
    ):
        assert from_json(Outer, json.loads(json.dumps(asdict(value)))) == value


def test_files_of_older_and_newer_programs_are_read():
    assert from_json(Outer, {"name": "old"}) == Outer("old")
    assert from_json(Outer, {"name": "new", "later": [1]}) == Outer("new")


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        None,
        {"name": "x", "inner": {"kind": "c"}},
        {"name": "x", "inner": {"kind": "a", "pair": ["y"]}},
        {"name": "x", "inner": {"kind": "a", "pair": ["y", "z"]}},
        {"name": "x", "many": 3},
        {"name": "x", "by_name": []},
    ],
)
def test_anything_else_is_an_error(data: Any):
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        from_json(Outer, data)
