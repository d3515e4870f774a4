"""From a parsed row to what it asks: plain rows, lines of an OpenAI batch, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from app.batch.input.prompting import Prompting, lookup, row_id
from app.batch.spec import InputOptions
from app.openai.task import Embed, Task
from app.openai.validation import MISSING, InputError, Problem
from runtimes.request import Priority, SamplingParams
from tests.app.batch.input.reading import CASES, COMPLETIONS, REFUSED, USER, request

JOB = SamplingParams(max_tokens=99, temperature=0.5)


def ask(row: dict[str, Any], **options: Any) -> Task:
    prompting = Prompting(sampling=JOB, **options)
    return prompting.task(row, prompting.endpoint(row))


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
