"""Where two answers part, counted on answers that are written by hand."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from app.compare.answers import Contender, Side, SideState, agreement, longest_common
from app.compare.report import agreement_line

EOS = 0


def side(*words: str, reason: str = "stop", probe: tuple[int, ...] = (1, 2, 3)) -> Side:
    """An answer whose tokens are ``words``; an id for each text, and one for its end."""
    ids = [1 + sum(map(ord, word)) for word in words]
    starts = list(itertools.accumulate(map(len, words), initial=0))
    if reason != "stop":
        starts.pop()
    return Side(
        contender=Contender("m"),
        label="other",
        state=SideState.DONE,
        text="".join(words),
        token_ids=(*ids, EOS) if reason == "stop" else tuple(ids),
        starts=tuple(starts),
        finish_reason=reason,
        prompt=(5, 6),
        probe=probe,
    )


def test_the_first_differing_token():
    found = agreement(side("a ", "b ", "c ", "d"), side("a ", "x ", "c ", "d"))
    assert found is not None
    assert found.parting is not None
    assert (found.parting.index, found.parting.mine, found.parting.theirs) == (1, "b ", "x ")
    assert found.parting.places == (2, 2)
    assert (found.same, found.longest, found.common) == (1, 5, 4)
    assert found.same_share == pytest.approx(0.2)
    assert found.share == pytest.approx(0.8)


def test_one_answer_ends_where_the_other_goes_on():
    found = agreement(side("a ", "b"), side("a ", "b", " c"))
    assert found is not None
    assert found.parting is not None
    assert (found.parting.index, found.parting.mine, found.parting.theirs) == (2, None, " c")
    assert "the end became ' c'" in agreement_line(found, side("a"), side("a"))


@pytest.mark.parametrize("reason", ["length", "cancelled", "context"])
def test_an_answer_that_was_cut_says_nothing_of_what_follows(reason: str):
    found = agreement(side("a ", "b", reason=reason), side("a ", "b", " c"))
    assert found is not None
    assert (found.same, found.longest, found.parting) == (2, 4, None)
    line = agreement_line(found, side("a"), side("a", reason=reason))
    assert "equal as far as both go" in line


def test_other_vocabularies_are_compared_by_characters():
    first, other = side("same ", "words"), side("same w", "ards", probe=(7, 7))
    found = agreement(first, other)
    assert found is not None
    assert found.parting is not None
    assert (found.unit, found.same, found.longest, found.common) == ("characters", 6, 10, 9)
    assert found.parting.mine == "ords"
    assert found.parting.places == (6, 6)
    with_bos = replace(first, probe=(99, 1, 2, 3))
    assert agreement(with_bos, first).unit == "tokens"  # type: ignore[union-attr]


def test_thoughts_that_end_apart_or_not_at_all():
    """Which of the two is named first does not matter; no answer is not the same answer."""
    short = replace(side("so. ", "yes"), thought="so. ", text="yes")
    long = replace(side("so. ", "hm. ", "yes"), thought="so. hm. ", text="yes")
    for first, second in ((short, long), (long, short)):
        found = agreement(first, second)
        said = agreement_line(found, second, first)
        assert said.endswith(", while thinking; the answers are the same"), said
    cut = [replace(side("so. ", word), thought=f"so. {word}", text="") for word in ("a", "b")]
    said = agreement_line(agreement(cut[0], cut[1]), cut[1], cut[0])
    assert said.endswith("'a' became 'b', while thinking")


@pytest.mark.parametrize(("gap", "tie"), [(0.01, True), (0.03, False), (None, None)])
def test_near_ties(gap: float | None, tie: bool | None):
    first, other = side("a ", "b"), side("a ", "c")
    if gap is not None:
        mine, theirs = first.token_ids[1], other.token_ids[1]
        first = replace(first, top={1: {mine: -1.0, theirs: -1.0 - gap, 77: -3.0}})
        other = replace(other, top={1: {theirs: -0.5, mine: -1.5}})
    found = agreement(first, other)
    assert found is not None
    assert found.parting is not None
    assert found.parting.near_tie is tie
    if gap is not None:
        assert found.parting.gaps == pytest.approx((gap, 1.0))
        assert found.parting.logprobs[1] == (-1.5, -0.5)  # what the other gives to both
        assert ("a near-tie" in agreement_line(found, other, first)) is tie


def test_longest_common_subsequence_against_the_textbook():
    def textbook(a: list[int], b: list[int]) -> int:
        row = [0] * (len(b) + 1)
        for x in a:
            before = row[:]
            for j, y in enumerate(b):
                row[j + 1] = before[j] + 1 if x == y else max(row[j], before[j + 1])
        return row[-1]

    draw = random.Random(3)
    for _ in range(300):
        a = [draw.randrange(5) for _ in range(draw.randrange(0, 90))]
        b = [draw.randrange(5) for _ in range(draw.randrange(0, 90))]
        assert longest_common(tuple(a), tuple(b)) == textbook(a, b)


def test_a_token_without_text_is_not_the_end():
    first, other = side("a ", "", reason="length"), side("a ", "b", reason="length")
    found = agreement(first, other)
    assert found is not None
    assert found.parting is not None
    assert (found.parting.mine, found.parting.theirs) == ("", "b")
    assert "a token without text became 'b'" in agreement_line(found, other, first)


def test_nothing_to_compare_before_both_have_said_something():
    nothing = replace(side("a"), token_ids=(), text="", starts=())
    assert agreement(nothing, side("a")) is None
    assert agreement(side("a"), replace(side("a"), probe=())) is None
