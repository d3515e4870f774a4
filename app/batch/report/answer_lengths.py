"""How long answers are, from those that ended, those that were cut off and those still running.

Short answers end first: the mean of what has ended says too little early on, and what runs says
only how long it is at least. Both are used as in the statistics of survival: the estimate of Kaplan
and Meier as far as answers have ended, beyond it a log-normal distribution (expectation
maximization for censored data), with a weak guess of its width, so that it needs few answers.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean, stdev
from typing import Any

_NORMAL = NormalDist()
_PER_OCTAVE = 16  # bins: lengths within 4% of each other count as equal
_WIDTH, _WEIGHT = 0.6, 2.0  # the guess of the width, and how many answers it counts as
_ROUNDS = 40
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


@dataclass(frozen=True, slots=True)
class LengthModel:
    """Up to the longest answer that ended as they were, above it a log-normal distribution."""

    lengths: Sequence[float]
    parts: Sequence[float]  # of the answers that are at most as long as each of ``lengths``
    mu: float
    sigma: float
    scatter: float = 0.0  # the standard deviation of an answer's tokens, as a part of the mean
    error: float = 0.0  # how far the mean may be off, likewise

    def quantile(self, part: float, above: int = 0) -> float:
        """The length that ``part`` of the answers stay below, of those longer than ``above``."""
        start = bisect_right(self.lengths, above)
        before = self.parts[start - 1] if start else 0.0
        if start == len(self.lengths):
            return self._beyond(part, above)
        place = before + (1 - before) * part
        at = bisect_left(self.parts, place)
        if at < len(self.lengths):
            return self.lengths[max(at, start)]
        known = self.parts[-1]
        return self._beyond((place - known) / (1 - known), self.lengths[-1])

    def _beyond(self, part: float, above: float) -> float:
        below = _NORMAL.cdf((math.log(max(above, 1.0)) - self.mu) / self.sigma)
        place = min(below + (1 - below) * part, 1 - 1e-6)
        return max(math.exp(self.mu + self.sigma * _NORMAL.inv_cdf(place)), above + 1.0)


def fit(counts: LengthCounts, running: Iterable[int], most: int) -> LengthModel:
    """From at least one answer that is there, and the tokens that each running one has so far; no
    answer may have more than ``most``, as a rule."""
    least = counts.cut + Counter(_bin(tokens) for tokens in running if tokens > 0)
    mu, sigma = _log_normal(counts.ended, least)
    lengths, parts, left = [], [], 1.0
    at_least = counts.ended.total() + least.total()
    for place in sorted(counts.ended.keys() | least.keys()):
        ended = counts.ended[place]
        if ended:
            left *= 1 - ended / (at_least + _UNSEEN)
            lengths.append(math.exp(_log(place)))
            parts.append(1 - left)
        at_least -= ended + least[place]
    model = LengthModel(lengths, parts, mu, sigma)
    # Of those that are longer than any that ended, nobody knows how long they become; but for those
    # that the limit cuts off.
    reached = max((math.exp(_log(place)) for place in least), default=0.0)
    unseen = left if reached < _NEAR * most else 0.0
    drawn = [min(most, model.quantile((i + 0.5) / _DRAWN)) for i in range(_DRAWN)]
    scatter = stdev(drawn) / fmean(drawn)
    error = math.hypot(scatter / math.sqrt(max(1, counts.total)), unseen)
    return replace(model, scatter=scatter, error=error)


def _log_normal(ended: Counter[int], least: Counter[int]) -> tuple[float, float]:
    """The mean and the standard deviation of the logarithms, by expectation maximization."""
    known = [(_log(place), count) for place, count in ended.items()]
    open_ended = [(_log(place), count) for place, count in least.items()]
    count = ended.total() + least.total()
    start = known or open_ended
    mu, sigma = sum(x * n for x, n in start) / sum(n for _, n in start), _WIDTH
    for _ in range(_ROUNDS):
        first = sum(n * x for x, n in known)
        second = sum(n * x * x for x, n in known)
        for x, n in open_ended:
            hazard = _hazard((x - mu) / sigma)
            first += n * (mu + sigma * hazard)
            second += n * (mu * mu + sigma * sigma + sigma * hazard * (x + mu))
        before, mu = mu, first / count
        spread = second - 2 * mu * first + count * mu * mu
        sigma = math.sqrt(max((spread + _WEIGHT * _WIDTH**2) / (count + _WEIGHT), 1e-4))
        if abs(mu - before) < 1e-3:
            break
    return mu, sigma


def _hazard(z: float) -> float:
    """Of the standard normal distribution: its density over what lies above."""
    if z > 6:
        return z + 1 / z
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(z / math.sqrt(2)))


def _bin(tokens: int) -> int:
    return round(_PER_OCTAVE * math.log2(max(1, tokens)))


def _log(place: int) -> float:
    return place * math.log(2) / _PER_OCTAVE
