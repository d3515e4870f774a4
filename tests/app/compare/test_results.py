"""Flips, places and votes, counted on answers that are written by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from app.compare.answers import CompareReport, Contender, Question, Side, SideState, Told
from app.compare.report import as_markdown, results_json, results_markdown
from app.compare.results import (
    Ballot,
    FileResult,
    PromptResult,
    Results,
    Sided,
    Vote,
    pair_of,
    wilson,
)
from runtimes.request import SamplingParams
from tests.hostile import HOSTILE, harmful


@pytest.mark.parametrize(
    ("wins", "of", "low", "high"),
    [  # R. G. Newcombe, Statistics in Medicine 17 (1998), p. 857, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson(wins: int, of: int, low: float, high: float) -> None:
    assert wilson(wins, of) == pytest.approx((low, high), abs=5e-5)


def row(index: int, first: Told, *others: Told, expected: tuple[str, ...] = ()) -> PromptResult:
    parts = tuple(index + 1 if first.text != other.text else None for other in others)
    return PromptResult(
        index, str(index), f"prompt {index}", (first, *others), parts, parts, expected
    )


def results(rows: list[PromptResult]) -> Results:
    count = len(rows[0].answers)
    files = tuple(FileResult(f"file {n}", f"f{n}", "llamacpp") for n in range(count))
    pairs = tuple(pair_of(rows, n, "tokens") for n in range(1, count))
    return Results("p.txt", files, pairs, tuple(rows))


def stories(count: int) -> Results:
    rows = [row(n, Told(f"a {n}"), Told(f"b {n}"), Told(f"c {n}")) for n in range(count)]
    return results([*rows, row(count, Told("same"), Told("same"), Told("same"))])


def test_votes_count_for_files_whatever_side_they_were_on(tmp_path: Path) -> None:
    """A user who always prefers file 1 to file 0, and file 0 to file 2."""
    ballot = Ballot(stories(30), tmp_path / "4" / "votes.jsonl")
    assert len(ballot.pairs) == 60  # equal answers are no pair
    assert 10 < sum(pair.swapped for pair in ballot.pairs) < 50
    rows = [pair.row for pair in ballot.pairs]
    assert rows != sorted(rows)
    sides = set()
    while (pair := ballot.next) is not None:
        shown = [ballot.results.rows[pair.row].answers[n].text[0] for n in (0, pair.other)]
        left, right = reversed(shown) if pair.swapped else shown
        better = Sided.LEFT if "cab".index(left) > "cab".index(right) else Sided.RIGHT
        sides.add(better)
        ballot.say(pair, better)
    assert sides == {Sided.LEFT, Sided.RIGHT}
    one, two = ballot.count()
    assert (one.file, one.wins, one.losses) == (1, 30, 0)
    assert (two.file, two.wins, two.losses) == (2, 0, 30)
    assert one.low == pytest.approx(wilson(30, 30)[0])


def test_votes_are_kept_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "votes.jsonl"
    ballot = Ballot(stories(3), path)
    order = [pair.key for pair in ballot.pairs]
    ballot.say(ballot.pairs[0], Sided.TIE)
    ballot.say(ballot.pairs[1], Sided.SKIP)
    ballot.say(ballot.pairs[2], Sided.LEFT)
    assert ballot.take_back()
    with path.open("a") as file:
        file.write('{"key": "torn')
    again = Ballot(stories(3), path)
    assert [pair.key for pair in again.pairs] == order
    assert again.done == 2
    assert again.next == again.pairs[2]
    assert list(again.votes.values()) == [Vote.TIE, Vote.SKIP]
    page = results_markdown(replace(stories(3), votes=again.count()))
    assert "1 tied, " in page
    other = stories(3)
    changed = [row(n, Told(f"new {n}"), Told(f"b {n}"), Told(f"c {n}")) for n in range(3)]
    assert Ballot(results(changed), path).done == 0  # these are other answers
    assert Ballot(other, path).done == 2


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_pages_show_what_they_quote(text: str) -> None:
    """Answers, prompts, ids and the names of files are text: nothing of them acts."""
    rows = [replace(row(0, Told(text), Told(error=text), expected=(text,)), id=text, prompt=text)]
    made = results(rows)
    files = tuple(replace(file, label=text) for file in made.files)
    made = replace(made, files=files, prompts=text)
    assert_shown(results_markdown(made))
    assert json.loads(results_json(made))["prompts"] == text
    assert not harmful(results_json(made))

    said = Side(text, contender=Contender(text), label=text, state=SideState.DONE)
    failed = replace(said, state=SideState.FAILED, text="", error=text)
    asked = Question(({"role": text, "content": text},), SamplingParams())
    assert_shown(as_markdown(CompareReport(asked, (said, failed), (None,))))


def assert_shown(page: str) -> None:
    """Nothing acts in ``page``, which is Markdown."""
    assert not harmful(page)
    shown = MarkdownIt("gfm-like", {"html": True}).render(page.replace("<br>", " "))
    ours = r"h\d|p|table|thead|tbody|tr|t[hd]|ul|li|blockquote|strong"
    assert not re.search(rf"<(?!/?({ours})\b)", shown), shown


def test_wilson_without_votes() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_flips_and_differences() -> None:
    yes, no = Told("a", right=True), Told("b", right=False)
    rows = [
        row(0, yes, yes, expected=("a",)),
        row(1, yes, no, expected=("a",)),
        row(2, no, yes, expected=("a",)),
        row(3, yes, no, expected=("a",)),
        row(4, yes, Told(error="it failed"), expected=("a",)),
        row(5, Told("x"), Told("x")),
    ]
    pair = pair_of(rows, 1, "tokens")
    assert (pair.rows, pair.identical) == (5, 2)
    assert (pair.first_difference_mean, pair.first_difference_median) == (3, 3)
    assert pair.flips is not None
    assert (pair.flips.rows, pair.flips.to_wrong, pair.flips.to_right) == (4, 2, 1)
    assert pair.flips.share == 0.75
    assert pair_of(rows[5:], 1, "tokens").flips is None
