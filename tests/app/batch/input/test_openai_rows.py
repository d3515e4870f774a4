"""From a parsed row to what it asks: plain rows, lines of an OpenAI batch, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.batch.input.prompting import Prompting, lookup, row_id
from app.batch.spec import InputOptions
from app.openai.constraints import constraint_changes
from app.openai.task import Embed, Task
from app.openai.validation import MISSING, InputError, Problem
from runtimes.request import Constraint, Priority, SamplingParams
from tests.app.batch.input.reading import CASES, COMPLETIONS, REFUSED, USER, request

JOB = SamplingParams(max_tokens=99, temperature=0.5)


def ask(row: dict[str, Any], **options: Any) -> Task:
    prompting = Prompting(sampling=JOB, **options)
    return prompting.task(row, prompting.endpoint(row))


def sampling(row: dict[str, Any]) -> SamplingParams:
    task = ask(row)
    assert task.sampling is not None
    return task.sampling


def problem(row: dict[str, Any]) -> Problem:
    with pytest.raises(InputError) as caught:
        ask(row)
    return caught.value.problem


@pytest.mark.parametrize("case", CASES["asked"], ids=str)
def test_what_a_plain_row_asks(case: dict[str, Any]) -> None:
    task = Task(tuple(case["history"]), tuple(case["turns"]))
    assert ask(case["row"], rows=InputOptions(field=case["field"])) == task


@pytest.mark.parametrize(("row", "code", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_by_name(row: dict[str, Any], code: str, words: str) -> None:
    found = problem(row)
    assert (found.code, words in found.message) == (code, True), found


def test_what_requests_ask() -> None:
    system = {"role": "system", "content": "s"}
    assert ask(request(messages=[system, *USER])) == Task((system,), ("hi",))
    plain = Task((), ("hi",), raw=True)
    assert ask(request(COMPLETIONS)) == ask(request(COMPLETIONS, prompt=["hi"])) == plain
    assert ask(request(COMPLETIONS, prompt=[1, 2])) == Task(raw=True, ids=(1, 2))
    several = ask(request(COMPLETIONS, prompt=["a", "b"], n=2, echo=True, logprobs=3))
    assert [part.turns for part in several.parts] == [("a",), ("b",)]
    for part in several.parts:
        assert part.sampling is not None
        assert (part.sampling.n, part.sampling.prompt_logprobs) == (2, 3)
    embed = {"model": "any", "input": ["a", [1, 2]], "dimensions": 3}
    parts = ask({**request(), "url": "/v1/embeddings", "body": embed}).parts
    assert [(part.turns, part.ids) for part in parts] == [(("a",), ()), ((), (1, 2))]
    assert {part.embed for part in parts} == {Embed(3)}


@pytest.mark.parametrize(("body", "expected"), CASES["parameters"], ids=str)
def test_parameters_on_top_of_the_jobs(body: dict[str, Any], expected: dict[str, Any]) -> None:
    found = sampling(request(**body))
    expected = {"max_tokens": 99, "temperature": 0.5, "logprobs": False, "n": 1, **expected}
    assert json.loads(json.dumps({name: getattr(found, name) for name in expected})) == expected


def test_what_asks_for_nothing_is_no_parameter() -> None:
    idle = {"stream": False, "tools": [], "tool_choice": "none", "user": "me", "metadata": {},
            "response_format": {"type": "text"}, "max_tokens": None}  # fmt: skip
    assert ask(request(**idle)).sampling is None
    found = sampling(request(COMPLETIONS, logprobs=2, best_of=3))
    assert (found.logprobs, found.top_logprobs, found.best_of) == (True, 2, 3)
    bounded = ask(request(max_tokens=50, min_tokens=20), most_tokens=8).sampling
    assert bounded is not None
    assert (bounded.max_tokens, bounded.min_tokens) == (8, 8)


def test_what_answers_must_be() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert constraint_changes({}) == {}
    assert constraint_changes({"response_format": {"type": "text"}}) == {"constraint": None}
    for body in ({"response_format": wanted}, {"structured_outputs": {"json": json.dumps(schema)}}):
        [made] = constraint_changes(body).values()
        assert made is not None
        assert json.loads(made.source) == schema
    assert constraint_changes({"structured_outputs": {"choice": ["a", "b"], "regex": None}}) == {
        "constraint": Constraint("choices", '["a", "b"]')
    }
    with pytest.raises(InputError) as caught:
        constraint_changes({"structured_outputs": {"regex": "x" * 300 + "(a/b"}})
    assert str(caught.value) == (
        "structured_outputs.regex: the regular expression cannot be used: unclosed group,"
        r" at `(a\/b`"
    )


def test_rows_that_are_no_requests() -> None:
    for row in ({"body": "text", "url": "x"}, {"body": {"messages": USER}}, {"custom_id": "a"}):
        assert problem(row).code == "missing_field"
    with_prompt = {"prompt": "x", "url": "u", "body": {}, "custom_id": "c"}
    assert ask(with_prompt) == Task((), ("x",))
    # --field says what the row is.
    assert ask(request(stream=True), rows=InputOptions(field="body.messages")) == Task((), ("hi",))


def test_priorities_and_places() -> None:
    options = InputOptions(priority_field="p")
    for said, expected in (("HIGH", 1), (0, 0), (1.0, 1), ("3", 3), (None, Priority.NORMAL)):
        assert ask({"prompt": "x", "p": said}, rows=options).priority == expected
    with pytest.raises(InputError, match="'urgent'"):
        ask({"prompt": "x", "p": "urgent"}, rows=options)
    for path in ("x", "a.x", "a.0", "list.2", "list.x", "list.-1", "list.²", ""):
        assert lookup({"a": {"b": 1}, "list": [0, 1]}, path) is MISSING
    for row, expected in CASES["ids"]:
        assert row_id(row, 7) == expected
