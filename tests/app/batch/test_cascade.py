"""`ingot batch --first`: a smaller model's answers where it is sure, the larger one's elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.batch.cascade import _FirstAnswers, alike, at_least, fewest_for, first_path, learn, sample
from app.batch.input.source import open_source
from app.batch.journal.journal import journal_path
from app.batch.spec import CascadeOptions
from app.openai.answer import Answer
from runtimes.errors import RequestError
from tests.app import stopping
from tests.app.batch.conftest import Batch
from tests.support import read_rows, write_rows

ROWS = 90
FLAGS = ["--max-tokens", "6", "--context", "256", "--agree", "0.7", "--confidence", "0.9"]


@pytest.fixture
def pair(batch: Batch, pebble_built: Path) -> Batch:
    """A job of ROWS rows, three of them alike, one that cannot be asked and one too long; the files
    of one model in 4 and in 8 bits answer most of them alike."""
    numbers = [n % (ROWS - 2) for n in range(ROWS)]
    rows: list[dict[str, Any]] = [
        {"id": f"r{at}", "prompt": f"What is {number} plus {at % 2}?"}
        for at, number in enumerate(numbers)
    ]
    rows[3], rows[40], rows[41] = {"id": "none"}, {"id": "long", "prompt": "x " * 900}, rows[39]
    write_rows(batch.source, rows)
    batch.model = pebble_built / "pebble-q8_0.gguf"
    return batch


def small(pebble_built: Path) -> list[object]:
    return [*FLAGS, "--first", pebble_built / "pebble-q4_k_m.gguf"]


def texts(records: list[dict[str, Any]]) -> list[str | None]:
    return [record.get("response") for record in records]


def test_every_row_has_the_answer_of_one_of_both(pair: Batch, pebble_built: Path) -> None:
    alone = pair.out.with_name("alone.jsonl")
    pair("-q", *FLAGS[:4], out=alone, code=1)
    end = pair.end(*small(pebble_built), code=1)
    first, records = end["first"], pair.records
    kept = {record["index"] for record in records if "answered_by" in record}
    assert (end["rows"], end["answered"], end["failed"]) == (ROWS, ROWS - 2, 2)
    assert len(kept) == first["kept"]
    assert 0 < len(kept) < ROWS - first["sampled"]
    assert first["model"] == "pebble-q4_k_m.gguf"
    assert first["tried"] >= first["alike"] > 0
    smalls, larges = read_rows(first_path(pair.out)), read_rows(alone)
    for small_one, large_one, record in zip(smalls, larges, records, strict=True):
        one = small_one if record["index"] in kept else large_one
        assert record.get("response") == one.get("response"), record["id"]
        if record["index"] in kept:
            assert record["answered_by"] == "pebble-q4_k_m.gguf"
            assert record["certainty"] == small_one["certainty"] >= first["threshold"]
    assert [record["id"] for record in records if "error" in record] == ["none", "long"]
    assert "input_prompt" not in records[0]
    assert "prompt" not in smalls[0]
    counted = sum(same is not None for same in texts(larges))
    agree = sum(a == b for a, b in zip(texts(records), texts(larges), strict=True)) - 2
    assert agree / counted >= 0.7

    computed = pair.computed
    assert pair.end(*small(pebble_built), code=1)["first"] == first | {"saved_s": None}
    assert set(pair.computed[len(computed) :]) == {40}  # the long row is tried again
    assert "first.agree: 0.7 -> none" in pair(*FLAGS[:4], code=2).stderr
    other = [*small(pebble_built), "--agree", "0.6"]
    assert "first:" not in pair(*other, code=2).stderr  # the smaller model is not asked
    assert "first.agree: 0.7 -> 0.6" in pair(*other, code=2).stderr
    assert pair.records == records


def test_a_job_that_was_killed_goes_on_with_either_model(
    pair: Batch, pebble_built: Path, ingot: Any
) -> None:
    """Among the smaller model's rows, among those that both answer, among those that are kept."""
    whole = pair.out.with_name("whole.jsonl")
    pair("-q", *small(pebble_built), out=whole, code=1)
    for rows in (30, ROWS - 2 + 10, ROWS - 2 + 29 + 10):
        out = pair.out.with_name(f"{rows}.jsonl")
        words = pair.words("-q", *small(pebble_built), out=out)
        process = ingot.start(*words, env=stopping.after_rows(out.with_suffix(".held"), rows))
        stopping.wait_stopped(process)
        process.kill()
        process.communicate()
        pair("-q", *small(pebble_built), out=out, code=1)
        assert texts(read_rows(out)) == texts(read_rows(whole))
        for path in (out, first_path(out)):
            lines = read_rows(journal_path(path))
            done = [line["index"] for line in lines if line.get("ok")]
            assert len(done) == len(set(done)) == ROWS - 2


def test_a_job_of_the_larger_model_goes_on_with_both(pair: Batch, pebble_built: Path) -> None:
    pair("-q", *FLAGS[:4], "--limit", "20", code=1)
    before = texts(pair.records)
    pair("-q", *small(pebble_built), code=1)
    assert texts(pair.records)[:20] == before
    assert sum("answered_by" in record for record in pair.records[20:]) > 0
    assert not any("answered_by" in record for record in pair.records[:20])


def test_an_input_that_changes_gets_no_other_rows_answers(tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.first.jsonl"
    write_rows(rows, [{"prompt": "a"}, {"prompt": "b"}])
    write_rows(out, [{"index": n, "response": str(n), "certainty": 0.5} for n in range(2)])
    with open_source(str(rows)) as source:
        given = _FirstAnswers(source, out, source.stamp())
        assert [answer.response for _, answer in given.rows()] == ["0", "1"]
        write_rows(rows, [{"prompt": "new"}, {"prompt": "a"}, {"prompt": "b"}])
        with pytest.raises(RequestError, match="changed while the job ran"):
            list(given.rows())


def test_openai_batches_and_labels(pair: Batch, pebble_built: Path) -> None:
    labels = [*small(pebble_built), "--task", "classify", "--choice", "yes", "--choice", "no"]
    found = pair.end(*labels, code=1, out=pair.out.with_name("labels.jsonl"))["first"]
    assert found["kept"] > 0
    bodies = [{"messages": [{"role": "user", "content": f"{n} plus 1?"}]} for n in range(ROWS)]
    bodies[5] |= {"logprobs": True}
    head = {"method": "POST", "url": "/v1/chat/completions"}
    rows = [{"custom_id": str(n), **head, "body": body} for n, body in enumerate(bodies)]
    write_rows(pair.source, rows)
    kept = pair.end(*small(pebble_built))["first"]["kept"]
    answers = [record["response"]["body"] for record in pair.records]
    models = [answer["model"] for answer in answers]
    assert models.count("pebble-q4_k_m.gguf") == kept > 0
    asked = answers[5]
    assert asked["model"] == "pebble-q8_0.gguf"
    assert asked["choices"][0]["logprobs"]["content"]


def test_too_few_rows_to_learn_from(pair: Batch, pebble_built: Path) -> None:
    """The larger one answers all of them."""
    few = pair("-q", *small(pebble_built), "--limit", "20", "--agree", "0.95", code=1)
    assert not any("answered_by" in record for record in pair.records)
    assert few.stderr.count("the row has no 'prompt'") == 2  # by each of the two jobs
    told = pair(*small(pebble_built), "--limit", "20", "--agree", "0.95", code=1).stderr
    assert "too few rows to learn from" in told


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "embed"], "--task embed"),
        (["--task", "score"], "--task score"),
        (["--n", "2"], "--n and --best-of"),
        (["--logprobs"], "--logprobs"),
        (["--test"], "--test"),
        (["--dry-run"], "--dry-run"),
        (["--agree", "1"], "--agree"),
    ],
)
def test_what_is_refused_before_any_work(
    pair: Batch, pebble_built: Path, flags: list[str], said: str
) -> None:
    assert said in pair(*small(pebble_built), *flags, code=2).stderr
    assert (
        "OUT" in pair._command("batch", pair.source, "-m", pair.model, *small(pebble_built)).stderr
    )
    assert not pair.out.exists()
    assert not first_path(pair.out).exists()


def test_what_either_model_cannot_do_is_found_before_both(pair: Batch, pebble_built: Path) -> None:
    pair.out.write_text("precious")
    assert "--fresh replaces it" in pair(*small(pebble_built), code=2).stderr
    assert pair.out.read_text() == "precious"
    assert not first_path(pair.out).exists()
    pair.out.unlink()
    assert "nowhere.gguf: no such" in pair(*FLAGS, "--first", "nowhere.gguf", code=3).stderr
    assert not pair.out.exists()
    assert not journal_path(pair.out).exists()


def test_a_model_that_is_not_right_where_it_is_sure() -> None:
    """The larger one answers all rows."""
    pairs = [(n / 300, n % 3 > 0) for n in range(300)]
    sure = np.array([certainty for certainty, _ in pairs])
    found = learn(sure, pairs, CascadeOptions("small"))
    assert (found.threshold, found.tried, found.alike) == (None, 30, 20)
    told = replace(found, model="small.gguf").line(900, "large.gguf")
    assert told == (
        "small.gguf keeps no answer: of its surest, 20 of 30 rows that both answered were as"
        " large.gguf's"
    )


def test_the_bound_holds_as_often_as_it_says() -> None:
    """Answers are alike with a probability that grows with certainty: what is learned from a sample
    is wrong, so that fewer of all answers as sure are alike, in one of ten jobs at most."""
    dice = np.random.default_rng(5)
    asked, jobs, wrong, kept = CascadeOptions("small", agree=0.9, confidence=0.9), 400, 0, 0
    for _ in range(jobs):
        sure = dice.random(1_500)
        same = dice.random(1_500) < 0.75 + 0.25 * sure
        chosen = sorted(sample(np.arange(1_500, dtype=np.uint64), fewest_for(0.9, 0.9)))
        found = learn(sure, [(sure[n], bool(same[n])) for n in chosen], asked)
        if found.threshold is not None:
            kept += 1
            wrong += 0.75 + 0.25 * (1 + found.threshold) / 2 < asked.agree
    assert kept > jobs / 2
    assert wrong <= jobs * 0.1


@pytest.mark.parametrize(("count", "trials"), [(0, 5), (3, 5), (40, 41), (290, 300), (300, 300)])
def test_the_binomial_tail(count: int, trials: int) -> None:
    share = Fraction(19, 20)
    exact = sum(
        math.comb(trials, n) * share**n * (1 - share) ** (trials - n)
        for n in range(count, trials + 1)
    )
    assert at_least(count, trials, 0.95) == pytest.approx(float(exact), rel=1e-9)


def test_a_larger_input_keeps_its_sample() -> None:
    rows = np.arange(700, dtype=np.uint64)
    before, after = sample(rows[:600], 10), sample(rows, 10)
    assert len(before) == 200
    assert len(after) == 233
    assert len(before - after) < 30  # others have come before them
    assert sample(rows[:600], 201) == frozenset()


def test_answers_that_are_alike() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    other = {"id": "2", "function": {"name": "f", "arguments": "{}"}}
    assert alike(Answer("a  b\n"), Answer("a b"))
    assert not alike(Answer("a b"), Answer("a c"))
    assert alike(Answer("", tool_calls=[call]), Answer("", tool_calls=[other]))
    assert not alike(Answer("", tool_calls=[call]), Answer(""))
    assert alike(Answer(label="x"), Answer(label="x"))
    assert not alike(Answer(label="x"), Answer())
