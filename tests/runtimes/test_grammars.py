"""Constraints from anybody: refused in words and in time, or compiled; nothing dies of them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from runtimes import grammars
from runtimes.engine.engine import Engine
from runtimes.errors import RequestError, WorkerError
from runtimes.grammars import grammar_of
from runtimes.request import Constraint, Request, SamplingParams


def chain_of_definitions(length: int, levels: int = 0) -> str:
    def wrapped(schema: Any) -> Any:
        for _ in range(levels):
            schema = {"type": "object", "properties": {"y": schema}}
        return schema

    named: dict[str, Any] = {f"a{length}": {"type": "string"}}
    for number in range(length):
        step = {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{number + 1}"}}}
        named[f"a{number}"] = wrapped(step)
    return json.dumps({"$ref": "#/$defs/a0", "$defs": named})


def chain_of_rules(length: int) -> str:
    rules = "".join(f'r{number}: "a" r{number + 1}\n' for number in range(length))
    return f'start: r0\n{rules}r{length}: "z"\n'


MANY = range(3000)
MANY_DEFINITIONS = json.dumps(
    {"anyOf": [{"$ref": f"#/$defs/{n}"} for n in MANY], "$defs": {n: {} for n in MANY}}
)
HOSTILE = [
    ("json_schema", chain_of_definitions(1000), "in a row, above 256"),
    ("json_schema", MANY_DEFINITIONS, "definitions, above 2,048"),
    ("json_schema", '{"a":' * 900 + "1" + "}" * 900, "nested too deeply"),
    ("json_schema", "[" * 100_000, "nested too deeply"),
    ("json_schema", json.dumps({"enum": ["x" * 300_000]}), "characters, above 262,144"),
    ("json_schema", '{"enum": ["\ud800"]}', "cannot be used"),
    ("json_schema", '{"$ref": "#"}', "no text that it allows"),
    ("grammar", "start: start", "no text that it allows"),
    ("json_schema", json.dumps({"enum": [*range(60_000)]}), "above 262,144|50,000 values"),
    ("grammar", chain_of_rules(3000), "3,002 rules, above 2,048"),
    ("grammar", chain_of_rules(1000), "in a row, above 256"),
    ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
    ("grammar", "\x00", "cannot be used"),
    ("regex", "(" * 3000 + "a" + ")" * 3000, "nested"),
    ("regex", "a" * 300_000, "characters, above 262,144"),
    ("choices", json.dumps([f"{number}" for number in range(17_000)]), "17,000 choices, above"),
    ("choices", json.dumps(["x" * 2_000_000]), "characters, above 1,048,576"),
]


@pytest.mark.parametrize(("kind", "source", "said"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_too_large_or_too_deep_is_refused(kind: Any, source: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        grammar_of(Constraint(kind, source))


def test_what_takes_too_long_to_compile_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(grammars, "LIMIT_CPU_S", 1)
    with pytest.raises(RequestError, match=r"1 s of a processor|longer than"):
        grammar_of(Constraint("regex", r"(.|\n)*" * 20_000))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", chain_of_definitions(200)),
        ("json_schema", chain_of_definitions(200, levels=8)),
        ("grammar", chain_of_rules(240)),
        ("choices", json.dumps([f"product {number}" for number in range(10_000)])),
    ],
    ids=["definitions", "deep definitions", "rules", "choices"],
)
def test_what_is_allowed_is_followed_by_an_engine(kind: Any, source: str, gguf) -> None:
    """An engine compiles with more stack than the process that has tried it."""
    with Engine.load(gguf) as engine:
        params = SamplingParams(max_tokens=4, constraint=Constraint(kind, source))
        answer = engine.submit(Request(engine.encode("Hello"), params)).result()
    assert answer.error is None


def test_a_process_that_dies_ends_one_request_and_is_replaced(monkeypatch) -> None:
    compilers = grammars._Compilers()
    first = Constraint("regex", "a+")
    assert compilers.grammar_of(first)
    (idle,) = compilers._idle
    idle._process.kill()
    idle._process.wait()
    with pytest.raises(RequestError, match=r"the process that compiled it died \(SIGKILL"):
        compilers.grammar_of(Constraint("regex", "b+"))
    assert compilers.grammar_of(Constraint("regex", "c+"))
    with pytest.raises(RequestError, match="died"):  # it is not tried again
        compilers.grammar_of(Constraint("regex", "b+"))
    monkeypatch.setattr(grammars, "LIMIT_S", 0.3)
    (idle,) = compilers._idle
    os.kill(idle._process.pid, signal.SIGSTOP)
    with pytest.raises(RequestError, match=r"longer than 0\.3 s"):
        compilers.grammar_of(Constraint("regex", "d+"))
    monkeypatch.undo()
    assert compilers.grammar_of(Constraint("regex", "e+"))


def test_not_everybody_waits_for_a_slow_one(monkeypatch) -> None:
    """Threads of a server that wait for a compiler are few: the others are refused soon."""
    monkeypatch.setattr(grammars, "_MOST_WAITING", 1)
    monkeypatch.setattr(grammars, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(grammars, "LIMIT_S", 60.0)
    compilers = grammars._Compilers()
    for name in "xy":
        compilers.grammar_of(Constraint("regex", name))
    running = [compilers._idle[0]]
    if len(compilers._idle) < 2:
        running.append(grammars._started())
        compilers._idle.append(running[1])
    for one in running:
        os.kill(one._process.pid, signal.SIGSTOP)
    threads = [
        threading.Thread(target=compilers.grammar_of, args=(Constraint("regex", f"{n}+"),))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    while compilers._waiting < 1:
        time.sleep(0.01)
    with pytest.raises(WorkerError, match="too many"):
        compilers.grammar_of(Constraint("regex", "z+"))
    for one in running:
        os.kill(one._process.pid, signal.SIGCONT)
    for thread in threads:
        thread.join(30)
    assert not compilers._running


def test_many_that_come_at_once_are_compiled_each_kind_once(monkeypatch) -> None:
    """A server that starts, and 64 clients with a few schemas between them."""
    compilers, counted = grammars._Compilers(), []
    asked_of = compilers._asked

    def count(constraint: Constraint) -> str | RequestError:
        counted.append(constraint)
        return asked_of(constraint)

    monkeypatch.setattr(compilers, "_asked", count)
    asked = [Constraint("regex", f"[a-z]{{{1 + n % 4}}}") for n in range(64)]
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(compilers.grammar_of, asked))
    assert found == [compilers.grammar_of(one) for one in asked]
    assert len(counted) == 4


def test_what_is_kept_is_bounded() -> None:
    compilers = grammars._Compilers()
    for number in range(80):
        compilers._keep(Constraint("regex", f"{number}" + "a" * 200_000), "g" * 200_000)
    assert 0 < compilers._size <= grammars._KEPT_CHARACTERS
    assert sum(len(one.source) for one in compilers._found) <= grammars._KEPT_CHARACTERS
    compilers._keep(large := Constraint("choices", json.dumps(["x" * 1_048_000])), "g" * 2000)
    assert large not in compilers._found


@given(some.dictionaries(some.sampled_from("abcdef"), some.sets(some.sampled_from("abcdef"))))
def test_the_longest_chain_of_names(needs: dict[str, set[str]]) -> None:
    found = grammars._longest_chain(needs)

    def longest(name: str, seen: frozenset[str]) -> int:
        below = [one for one in needs[name] if one in needs and one not in seen]
        return 1 + max((longest(one, seen | {one}) for one in below), default=0)

    most = max((longest(name, frozenset({name})) for name in needs), default=0)
    assert found <= most
    acyclic = all(one < name for name in needs for one in needs[name])
    if acyclic:
        assert found == most
