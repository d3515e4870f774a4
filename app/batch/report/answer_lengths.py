"""Outcomes of rows, and how long answers are: of those that ended, and those that were cut off."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from app.openai.validation import Problem
from runtimes.request import Completion, FinishReason

_PER_OCTAVE = 16  # bins: lengths within 4% of each other count as equal


_TAIL = 0.5  # beyond what has ended, half of the answers stay below 2**_TAIL times that


_DRAWN = 64


_NEAR = 0.9  # of the limit: what is so long already becomes little longer


_UNSEEN = 0.5  # answers that may be longer than any that ended


@dataclass(slots=True)
class LengthCounts:
    """Answers by the logarithm of their tokens: bounded memory for any number of rows."""

    ended: Counter[int] = field(default_factory=Counter)  # by themselves
    cut: Counter[int] = field(default_factory=Counter)  # by a limit

    def add(self, tokens: int, *, cut: bool) -> None:
        """Count an answer."""
        (self.cut if cut else self.ended)[_bin(tokens)] += 1

    def add_record(self, answer: Mapping[str, Any]) -> None:
        """Count the answers of a row of the journal; of several only their mean is known."""
        tokens = answer.get("usage", {}).get("completion_tokens", 0)
        several = answer.get("choices") or answer.get("responses") or (None,)
        for _ in several:
            self.add(tokens // len(several), cut=answer.get("finish_reason") != "stop")

    @property
    def total(self) -> int:
        """All answers that were counted."""
        return self.ended.total() + self.cut.total()


@dataclass(slots=True)
class RowCounts:
    """What became of rows so far."""

    answered: int = 0
    failed: int = 0
    running: int = 0
    retried: int = 0
    crashes: int = 0  # deaths of the worker process
    prompt_tokens: int = 0  # tokens are of finished rows
    cached_tokens: int = 0
    completion_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # failures by their code
    working: tuple[int, ...] = ()  # the indexes of the rows that have a slot
    lengths: LengthCounts = field(default_factory=LengthCounts)  # of earlier runs too

    def finished(self, problem: Problem | None, completions: Iterable[Completion] = ()) -> None:
        """Count a row: why it failed, if it did, and what it was answered."""
        if problem is None:
            self.answered += 1
        else:
            self.failed += 1
            self.errors[problem.code] += 1
        for completion in completions:
            self.prompt_tokens += completion.usage.prompt_tokens
            self.cached_tokens += completion.usage.cached_tokens
            for choice in completion.choices:
                tokens = choice.usage.completion_tokens
                self.completion_tokens += tokens
                self.lengths.add(tokens, cut=choice.finish_reason is not FinishReason.STOP)


@dataclass(frozen=True, slots=True)
class LengthModel:
    """Up to the longest answer that ended as they were, above it a Pareto distribution."""

    lengths: Sequence[float]
    parts: Sequence[float]  # of the answers that are at most as long as each of ``lengths``
    longest: float
    scatter: float = 0.0  # the standard deviation of an answer's tokens, as a part of the mean
    error: float = 0.0  # how far the mean may be off, likewise

    def quantile(self, part: float, above: int = 0) -> float:
        """The length that ``part`` of the answers stay below, of those longer than ``above``."""
        start = bisect_right(self.lengths, above)
        if start < len(self.lengths):
            before = self.parts[start - 1] if start else 0.0
            place = before + (1 - before) * part
            at = bisect_left(self.parts, place)
            if at < len(self.lengths):
                return self.lengths[max(at, start)]
            known = self.parts[-1]
            part = (place - known) / (1 - known)
        return max(self.longest, above) * math.pow(1 - part, -_TAIL)


def fit(counts: LengthCounts, running: Iterable[int], most: int) -> LengthModel:
    """From at least one answer that is there, and the tokens that each running one has so far; no
    answer may have more than ``most``, as a rule."""
    least = counts.cut + Counter(_bin(tokens) for tokens in running if tokens > 0)
    lengths, parts, left = [], [], 1.0
    at_least = counts.ended.total() + least.total()
    for place in sorted(counts.ended.keys() | least.keys()):
        ended = counts.ended[place]
        if ended:
            left *= 1 - ended / (at_least + _UNSEEN)
            lengths.append(_tokens(place))
            parts.append(1 - left)
        at_least -= ended + least[place]
    reached = max(map(_tokens, least), default=0.0)
    model = LengthModel(lengths, parts, lengths[-1] if lengths else reached)
    # Of those that are longer than any that ended, nobody knows how long they become; but for those
    # that the limit cuts off.
    unseen = left if reached < _NEAR * most else 0.0
    drawn = [min(most, model.quantile((i + 0.5) / _DRAWN)) for i in range(_DRAWN)]
    scatter = stdev(drawn) / fmean(drawn)
    error = math.hypot(scatter / math.sqrt(max(1, counts.total)), unseen)
    return replace(model, scatter=scatter, error=error)


def _bin(tokens: int) -> int:
    return round(_PER_OCTAVE * math.log2(max(1, tokens)))


def _tokens(place: int) -> float:
    return 2 ** (place / _PER_OCTAVE)
