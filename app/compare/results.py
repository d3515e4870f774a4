"""What a file of prompts shows of several files: their answers, how far these agree with those of
the first file, and figures. ``dataclasses.asdict`` is the JSON of a report."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from statistics import fmean, median
from typing import Any, Literal

from app.compare.records import Agreement, Parting, Side

Unit = Literal["tokens", "characters"]
_Z95 = 1.959964  # of the normal distribution: 95% lie between minus and plus this


@dataclass(frozen=True, slots=True)
class Told:
    """One file's answer to one prompt; figures are None where there is no answer."""

    text: str = ""
    error: str | None = None
    finish_reason: str | None = None
    tokens: int = 0
    decode_tps: float | None = None
    ttft_s: float | None = None
    right: bool | None = None  # None where nobody says which answer is expected


@dataclass(frozen=True, slots=True)
class PromptResult:
    """A prompt with all files' answers. ``parts`` are, for each later file, where its answer parts
    from the first file's, in the pair's unit; None for equal answers and where one is missing."""

    index: int
    id: str
    prompt: str
    answers: tuple[Told, ...]
    parts: tuple[int | None, ...]
    places: tuple[int | None, ...]  # the same place in the two texts, in characters
    expected: tuple[str, ...] = ()  # any of these is right

    def same(self, other: int) -> bool | None:
        """Whether the answer of file ``other`` (from 1) is the first one's; None: not known."""
        if self.answers[0].error is not None or self.answers[other].error is not None:
            return None
        return self.answers[0].text == self.answers[other].text


@dataclass(frozen=True, slots=True)
class FileResult:
    """One file; speeds are medians over its answers, as many of them at a time as it had slots."""

    label: str
    file: str
    runtime: str
    bytes: int | None = None
    bits_per_weight: float | None = None
    kl: float | None = None  # what its manifest has measured
    answered: int = 0
    failed: int = 0
    right: int | None = None
    completion_tokens: int = 0
    decode_tps: float | None = None
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class Flips:
    """Of ``rows`` answers, those that were right and became wrong, and the other way round: two
    files may be right equally often, each with other rows (A. Dutta et al., "Accuracy is Not All
    You Need", 2024)."""

    rows: int
    to_wrong: int
    to_right: int

    @property
    def share(self) -> float:
        """Of the rows."""
        return (self.to_wrong + self.to_right) / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class PairResult:
    """A later file against the first. ``rows`` have an answer of both; the figures of the first
    difference are over those that differ, None where none does."""

    file: int  # which of the report's files, from 1
    rows: int
    identical: int
    unit: Unit
    first_difference_mean: float | None = None
    first_difference_median: float | None = None
    same_share: float | None = None  # mean of the part that is equal from the start on
    flips: Flips | None = None

    @property
    def identical_share(self) -> float | None:
        """Of the rows that both answered."""
        return self.identical / self.rows if self.rows else None


@dataclass(frozen=True, slots=True)
class Votes:
    """What a user preferred without knowing which file was which: a later file against the first;
    ``low`` and ``high`` bound the share of wins of ``file`` among the votes that decide."""

    file: int
    wins: int
    losses: int
    ties: int
    skipped: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Results:
    """All of it."""

    prompts: str
    files: tuple[FileResult, ...]
    pairs: tuple[PairResult, ...]
    rows: tuple[PromptResult, ...]
    temperature: float = 0.0
    max_tokens: int = 0
    seed: int | None = None
    system: str | None = None
    made: float = field(default_factory=time.time)
    votes: tuple[Votes, ...] = ()


def as_object(results: Results) -> dict[str, Any]:
    """For programs: all fields, and the shares that follow from them."""
    found = asdict(results)
    for pair, data in zip(results.pairs, found["pairs"], strict=True):
        data["identical_share"] = pair.identical_share
        if pair.flips is not None:
            data["flips"]["share"] = pair.flips.share
    for row, data in zip(results.rows, found["rows"], strict=True):
        data["same"] = [row.same(number) for number in range(1, len(results.files))]
    return found


def pair_of(rows: Sequence[PromptResult], number: int, unit: Unit) -> PairResult:
    """File ``number`` against the first, over ``rows``."""
    both = [row for row in rows if row.same(number) is not None]
    parts = [part for row in both if (part := row.parts[number - 1]) is not None]
    marked = [row for row in both if row.expected]
    flips = None
    if marked:
        pairs = [(row.answers[0].right, row.answers[number].right) for row in marked]
        flips = Flips(len(marked), pairs.count((True, False)), pairs.count((False, True)))
    return PairResult(
        file=number,
        rows=len(both),
        identical=sum(row.same(number) is True for row in both),
        unit=unit,
        first_difference_mean=fmean(parts) if parts else None,
        first_difference_median=median(parts) if parts else None,
        same_share=fmean(_same_share(row, number) for row in both) if both else None,
        flips=flips,
    )


def _same_share(row: PromptResult, number: int) -> float:
    """The part of the longer text that is equal from the start on."""
    mine, theirs = row.answers[0].text, row.answers[number].text
    longest = max(len(mine), len(theirs))
    return equal_from_start(mine, theirs) / longest if longest else 1.0


def medians(answers: Sequence[Told]) -> tuple[float | None, float | None]:
    """Decode speed and time to the first token."""
    speeds = [one.decode_tps for one in answers if one.decode_tps is not None]
    waits = [one.ttft_s for one in answers if one.ttft_s is not None]
    return median(speeds) if speeds else None, median(waits) if waits else None


def wilson(wins: int, of: int) -> tuple[float, float]:
    """The interval in which the share of wins lies with 95% confidence.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of
    the American Statistical Association 22 (1927), p. 209; without continuity correction.
    """
    if not of:
        return 0.0, 1.0
    share, z2 = wins / of, _Z95 * _Z95
    centre = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z95 / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return max(0.0, centre - half), min(1.0, centre + half)


# Where two greedy answers part, and how much of them is equal.


def agreement(first: Side, other: Side) -> Agreement | None:
    """``other`` against ``first``; None while one of them has nothing.

    Token by token where both use the same vocabulary, else character by character. An answer that
    was cut (by its length limit or by the user) says nothing of what would have followed: it agrees
    with a longer one that begins with it.
    """
    if not first.probe or not other.probe:
        return None
    if not (first.token_ids and other.token_ids):
        return None
    tokens = same_vocabulary(first, other)
    mine = first.token_ids if tokens else first.text
    theirs = other.token_ids if tokens else other.text
    same = equal_from_start(mine, theirs)
    ended = first.state.ended and other.state.ended
    # Where one is the beginning of the other, the shorter one must have ended there by itself.
    shorter = first if len(mine) < len(theirs) else other
    parts = same < min(len(mine), len(theirs)) or (len(mine) != len(theirs) and shorter.whole)
    make = _at_token if tokens else _at_character
    return Agreement(
        unit="tokens" if tokens else "characters",
        same=same,
        longest=max(len(mine), len(theirs)),
        common=longest_common(mine, theirs) if ended else None,
        parting=make(first, other, same) if parts else None,
        same_prompt=first.prompt == other.prompt or not tokens,
    )


def same_vocabulary(first: Side, other: Side) -> bool:
    """Whether both turn a text of several scripts into the same ids; a token that one of them puts
    before every text does not count."""
    a, b = first.probe, other.probe
    return a == b or a[1:] == b or a == b[1:]


def equal_from_start(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of the common beginning."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


@lru_cache(16)
def longest_common(a: tuple[Hashable, ...] | str, b: tuple[Hashable, ...] | str) -> int:
    """The length of the longest common subsequence.

    Bit-parallel (H. Hyyrö, "Bit-parallel LCS-length computation revisited", 2004): one addition of
    numbers of len(a) bits for each item of ``b``.
    """
    places: dict[Hashable, int] = {}
    for i, item in enumerate(a):
        places[item] = places.get(item, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for item in b:
        matches = row & places.get(item, 0)
        row = ((row + matches) | (row - matches)) & everything
    return len(a) - row.bit_count()


def _at_token(first: Side, other: Side, index: int) -> Parting:
    ids = (first.token_ids, other.token_ids)
    pair = [tokens[index] if index < len(tokens) else None for tokens in ids]

    def gap(side: Side) -> float | None:
        best = sorted(side.top.get(index, {}).values(), reverse=True)
        return best[0] - best[1] if len(best) > 1 else None

    def logprobs(side: Side) -> tuple[float | None, ...]:
        top = side.top.get(index, {})
        return tuple(None if token is None else top.get(token) for token in pair)

    return Parting(
        index,
        None if first.ends_at(index) else first.piece(index),
        None if other.ends_at(index) else other.piece(index),
        (first.place(index), other.place(index)),
        (gap(first), gap(other)),
        (logprobs(first), logprobs(other)),
    )


def _at_character(first: Side, other: Side, index: int) -> Parting:
    def word(text: str) -> str | None:
        return text[index : index + 12] if index < len(text) else None

    return Parting(index, word(first.text), word(other.text), (index, index))
