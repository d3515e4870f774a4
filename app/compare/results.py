"""Results of a file of prompts: the answers of several files, how far they agree with those of the
first file, figures and votes. ``dataclasses.asdict`` is the JSON of a report, see ``report.py``."""

import hashlib
import json
import math
import os
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from app.compare.answers import Told, equal_from_start
from quantize.manifest import Flips

Unit = Literal["tokens", "characters"]
_Z95 = 1.959964  # of the normal distribution: 95% lie between minus and plus this


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
        mine, theirs = self.answers[0], self.answers[other]
        return None if mine.error or theirs.error else mine.text == theirs.text


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
        """Share of equal answers among the rows that both answered; None without such rows."""
        return self.identical / self.rows if self.rows else None


@dataclass(frozen=True, slots=True)
class Votes:
    """Blind votes on a later file against the first; ``low`` and ``high`` bound the share of wins
    of ``file`` among the votes that decide (95%)."""

    file: int
    wins: int
    losses: int
    ties: int
    skipped: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Results:
    """A report: files, pairs, rows, and how they were asked."""

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


def pair_of(rows: Sequence[PromptResult], number: int, unit: Unit) -> PairResult:
    """File ``number`` against the first, over ``rows``."""
    both = [row for row in rows if row.same(number) is not None]
    parts = [row.parts[number - 1] for row in both]
    known = [part for part in parts if part is not None]
    pairs = [(row.answers[0].right, row.answers[number].right) for row in both if row.expected]
    flips = Flips(len(pairs), pairs.count((True, False)), pairs.count((False, True)))
    return PairResult(
        file=number,
        rows=len(both),
        identical=sum(row.same(number) is True for row in both),
        unit=unit,
        first_difference_mean=fmean(known) if known else None,
        first_difference_median=middle(parts),
        same_share=fmean(_same_share(row, number) for row in both) if both else None,
        flips=flips if pairs else None,
    )


def _same_share(row: PromptResult, number: int) -> float:
    """The part of the longer text that is equal from the start on."""
    mine, theirs = row.answers[0].text, row.answers[number].text
    longest = max(len(mine), len(theirs))
    return equal_from_start(mine, theirs) / longest if longest else 1.0


def middle(values: Iterable[float | None]) -> float | None:
    """Median of the known values; None where there is none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


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


# A preference by a user who does not see which file is which.


class Vote(StrEnum):
    """For the first file of a report, for the later one, or for none."""

    FIRST = "first"
    OTHER = "other"
    TIE = "tie"
    SKIP = "skip"


class Sided(StrEnum):
    """Choice of a user who sees sides only."""

    LEFT = "left"
    RIGHT = "right"
    TIE = "tie"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class BlindPair:
    """Two answers to one prompt: the first file's, and that of file ``other``; ``swapped``: the
    other one's is shown at the left."""

    row: int  # which of the report's rows
    other: int
    swapped: bool
    key: str

    def vote(self, said: Sided) -> Vote:
        """Return the vote that a choice of sides means."""
        if said in ("tie", "skip"):
            return Vote(said)
        return Vote.OTHER if (said == "left") == self.swapped else Vote.FIRST


class Ballot:
    """The pairs of a report, and what was said of them so far; in ``path``, a line a vote."""

    def __init__(self, results: Results, path: Path) -> None:
        """Raises OSError when votes are there that cannot be read."""
        self.results = results
        self._path = path
        self.votes = _read(path)
        chance = random.Random(path.parent.name)  # the same ones when one goes on later
        self.pairs = [
            BlindPair(
                at, other, chance.random() < 0.5, _key(row.prompt, row.answers[0].text, told.text)
            )
            for at, row in enumerate(results.rows)
            for other, told in enumerate(row.answers[1:], 1)
            if row.same(other) is False
        ]
        chance.shuffle(self.pairs)

    @property
    def next(self) -> BlindPair | None:
        """The pair to be judged next; None when all are."""
        return next((pair for pair in self.pairs if pair.key not in self.votes), None)

    @property
    def done(self) -> int:
        """Number of judged pairs."""
        return sum(pair.key in self.votes for pair in self.pairs)

    def say(self, pair: BlindPair, said: Sided) -> None:
        """Keep a vote. Raises OSError."""
        vote = pair.vote(said)
        self._write(pair.key, vote)
        self.votes[pair.key] = vote

    def take_back(self) -> bool:
        """Forget the last vote; False when there is none. Raises OSError."""
        if not self.votes:
            return False
        key = next(reversed(self.votes))
        self._write(key, None)
        del self.votes[key]
        return True

    def _write(self, key: str, vote: Vote | None) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "vote": vote}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def count(self) -> tuple[Votes, ...]:
        """Count the votes on each later file; empty without votes."""
        found = []
        for other in range(1, len(self.results.files)):
            said = [self.votes.get(pair.key) for pair in self.pairs if pair.other == other]
            if any(said):
                kinds = (Vote.OTHER, Vote.FIRST, Vote.TIE, Vote.SKIP)
                wins, losses, ties, skipped = map(said.count, kinds)
                bounds = wilson(wins, wins + losses)
                found.append(Votes(other, wins, losses, ties, skipped, *bounds))
        return tuple(found)


def _read(path: Path) -> dict[str, Vote]:
    found: dict[str, Vote] = {}
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            said = json.loads(line)
            key, vote = str(said["key"]), said["vote"]
            found.pop(key, None)
            if vote is not None:
                found[key] = Vote(vote)
        except (ValueError, KeyError, TypeError):
            continue  # a line that a power cut tore
    return found


def _key(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()
