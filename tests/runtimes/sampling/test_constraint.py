"""Answers that keep to a constraint: real models, both runtimes."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest

from runtimes.engine.engine import Engine
from runtimes.errors import RequestError
from runtimes.grammars import grammar_of
from runtimes.request import Constraint, FinishReason, Request, SamplingParams
from runtimes.sampling.grammar import GrammarCompiler
from runtimes.settings import RunnerSettings

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA = Constraint("json_schema", json.dumps(PERSON))
CHOICES = ["Paris", "Rome", 'a "quoted" \\ one', "über\n☃"]


def prompt(engine: Engine, text: str = "Make a JSON object with name Ana and age 31.") -> list[int]:
    return engine.encode_chat([{"role": "user", "content": text}])


def ask(engine: Engine, constraint: Constraint, **params):
    wanted = SamplingParams(constraint=constraint, **{"max_tokens": 200, **params})
    return engine.submit(Request(prompt(engine), wanted))


def follows_person(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "age", "tags"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 12
        and 0 <= value["age"] <= 150
        and set(value["tags"]) <= {"a", "b"}
        and len(value["tags"]) <= 2
    )


def test_each_kind_holds_at_any_temperature(engine):
    # Hot enough for the model alone to write nonsense; different constraints share a batch.
    kinds = [
        SCHEMA,
        Constraint("regex", "[A-F]{3}-[0-9]{4}"),
        Constraint("choices", json.dumps(CHOICES)),
        Constraint("grammar", 'start: "(" NUMBER ("+" NUMBER)~2 ")"\nNUMBER: /[1-9][0-9]?/'),
    ]
    streams = [
        (constraint, ask(engine, constraint, temperature=heat, seed=seed))
        for heat, seed in ((0.0, 1), (1.5, 2), (3.0, 3), (3.0, 4))
        for constraint in kinds
    ]
    for constraint, stream in streams:
        done = stream.result(60)
        assert done.finish_reason is FinishReason.STOP, done
        assert {
            "json_schema": follows_person,
            "regex": lambda text: re.fullmatch("[A-F]{3}-[0-9]{4}", text),
            "choices": lambda text: text in CHOICES,
            "grammar": lambda text: re.fullmatch(r"\([1-9]\d?\+[1-9]\d?\+[1-9]\d?\)", text),
        }[constraint.kind](done.text), (constraint.kind, done.text)


def test_a_reference_may_have_any_letters(engine):
    node = {"type": "object", "properties": {"größe": {"type": "integer", "maximum": 9}}}
    node |= {"required": ["größe"], "additionalProperties": False}
    schema = {"$defs": {"Höhe 名": node}, "$ref": "#/$defs/Höhe 名"}
    done = ask(engine, Constraint("json_schema", json.dumps(schema)), temperature=2.0, seed=1)
    assert list(json.loads(done.result(60).text)) == ["größe"]


def test_rows_without_a_constraint_are_not_touched(engine):
    question = prompt(engine, "What is the capital of France?")
    alone = engine.generate([question], SamplingParams(max_tokens=24))[0]
    constrained = ask(engine, SCHEMA, temperature=2.0, seed=5)
    beside = engine.generate([question], SamplingParams(max_tokens=24))[0]
    assert beside.token_ids == alone.token_ids
    assert follows_person(constrained.result(60).text)


def test_the_end_comes_when_nothing_can_follow(engine):
    only = Constraint("choices", '["yes"]')
    done = ask(engine, only, ignore_eos=True, min_tokens=50).result(60)
    assert (done.text, done.finish_reason) == ("yes", FinishReason.STOP)
    # Where the text may end or go on, min_tokens keeps it going and ignore_eos does not.
    more = Constraint("regex", "[a-z ]+")
    assert ask(engine, more, min_tokens=30, max_tokens=40).result(60).usage.completion_tokens >= 30
    assert ask(engine, more, max_tokens=5).result(60).finish_reason is not FinishReason.ERROR


def test_samples_and_penalties_and_biases_stay_within(engine):
    done = ask(
        engine,
        SCHEMA,
        n=3,
        best_of=4,
        temperature=2.0,
        top_k=50,
        top_p=0.9,
        seed=3,
        repetition_penalty=1.3,
        presence_penalty=1.0,
        logit_bias=((5, 50.0),),
    ).result(60)
    assert len(done.choices) == 3
    assert all(follows_person(choice.text) for choice in done.choices)


@pytest.mark.parametrize(
    ("kind", "source", "said"),
    [
        ("json_schema", "", "JSON schema cannot be used: it is empty"),
        ("json_schema", "no schema", "it is not JSON: Expecting value: line 1 column 1"),
        ("json_schema", '{"type": "object"', "it is not JSON: Expecting ',' delimiter: line 1"),
        ("json_schema", "[1]", "it must be a JSON object, not a list"),
        ("json_schema", "3", "it must be a JSON object, not a number"),
        ("json_schema", '{"type": "nonsense"}', 'at #: "nonsense" is not a type; types are array'),
        (
            "json_schema",
            '{"properties": {"type": {"items": {"type": ["null", "strng"]}}}}',
            'at #/properties/type/items: "strng" is not a type',
        ),
        ("json_schema", '{"type": "object", "unevaluatedProperties": false}', "Unimplemented"),
        ("regex", "(a", "unclosed group"),
        ("regex", "a(?=b)", "look-around"),
        ("choices", "[]", "at least one"),
        ("choices", '["a", ""]', "must not be empty"),
        ("choices", '{"a": 1}', "at least one"),
        ("grammar", "start: foo", 'unknown name: "foo"'),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(engine, kind, source, said):
    with pytest.raises(RequestError, match=said) as caught:
        ask(engine, Constraint(kind, source))
    assert "\n" not in str(caught.value)
    with pytest.raises(RequestError, match=said):
        grammar_of(Constraint(kind, source))


def test_a_parser_that_gives_up_ends_its_row_alone(engine):
    # Grows without bound while it is parsed: llguidance's limits end it.
    hard = Constraint("grammar", "start: a+\na: b | b b | a a\nb: a b | /[a-z ]/ | /[a-z]+/")
    other = ask(engine, SCHEMA)
    try:
        done = ask(engine, hard, temperature=1.0, seed=1, max_tokens=60).result(60)
    except RequestError:
        done = None  # refused when it was compiled: as good
    if done is not None and done.finish_reason is FinishReason.ERROR:
        assert "cannot be followed" in done.error
    assert follows_person(other.result(60).text)


def hold_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """From now on nothing is compiled until the event is set."""
    go_on, compiled = threading.Event(), engine._grammars.compile

    def late(constraint: Constraint, grammar: str) -> object:
        assert go_on.wait(120)
        return compiled(constraint, grammar)

    monkeypatch.setattr(engine._grammars, "compile", late)
    return go_on


def test_what_is_compiled_holds_nobody_up(engine, monkeypatch):
    known = Constraint("choices", '["yes"]')
    ask(engine, known).result(60)
    go_on = hold_back(engine, monkeypatch)
    first, second = (ask(engine, Constraint("regex", f"[ab]{{{n}}}")) for n in (3, 4))
    assert ask(engine, known).result(60).text == "yes"
    assert engine.generate([prompt(engine)], SamplingParams(max_tokens=2))[0].token_ids
    first.cancel()
    assert first.result(60).finish_reason is FinishReason.CANCELLED
    assert (engine.stats().queued, engine.stats().compiling) == (1, 1)
    go_on.set()
    assert re.fullmatch("[ab]{4}", second.result(60).text)
    assert (engine.stats().queued, engine.stats().compiling) == (0, 0)


@pytest.mark.parametrize("drain", [True, False])
def test_an_engine_that_is_closed_while_it_compiles(gguf, monkeypatch, drain):
    with Engine.load(gguf, RunnerSettings(slots=1, context=256)) as engine:
        go_on = hold_back(engine, monkeypatch)
        stream = ask(engine, Constraint("choices", '["yes"]'))
        closing = threading.Thread(target=engine.close, kwargs={"drain": drain})
        closing.start()
        while not engine._closing:
            time.sleep(0.001)
        go_on.set()
        closing.join(60)
        done = stream.result(0)
    assert done.finish_reason is (FinishReason.STOP if drain else FinishReason.CANCELLED)


def test_a_compiled_constraint_is_used_again(engine):
    constraints = GrammarCompiler(engine.tokenizer)
    assert constraints.known(SCHEMA) is None
    first, again = constraints.compile(SCHEMA, grammar_of(SCHEMA))(), constraints.known(SCHEMA)
    assert again is not None
    second = again()
    for token in engine.tokenizer.encode('{"'):
        first.accept(token)
    assert not second.complete  # matchers do not share a state
    assert first.error is None
