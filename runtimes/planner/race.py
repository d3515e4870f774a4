"""The best few in turn, round by round, until it is clear which is the fastest.

The samples of a round follow each other, so that what else the machine does falls on all of them
alike: settings are compared within a round, whose common drift is divided out of its figures.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runtimes.planner.candidates import Candidate, PlanTask
from runtimes.planner.choose import score, spread
from runtimes.planner.plan import TRIAL_PROMPT, Figures
from runtimes.planner.trial import Trial

LEAST_ROUNDS, MOST_ROUNDS = 4, 20
_BEHIND = 0.85  # of the leader's score: what is slower than this is not measured again
_SURE, _FINE = 2.0, 0.01  # standard errors that part two settings; an error that is small enough

# A candidate with a number of rows together.
Contender = tuple[Candidate, int]


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens a second in one round: of one prompt's prefill, and of all rows decoding together."""

    prefill: dict[Candidate, float] = field(default_factory=dict)
    decode: dict[Contender, float] = field(default_factory=dict)
    depth: dict[Candidate, int] = field(default_factory=dict)  # the least that was measured

    def measure(self, trial: Trial, candidate: Candidate, counts: Iterable[int]) -> None:
        """Take a sample with each number of rows. Raises TrialError."""
        for rows in counts:
            # One prompt's prefill does not depend on the rows that decode afterwards.
            sample = trial.sample(0 if candidate in self.prefill else TRIAL_PROMPT, rows)
            if sample.prefill_tps is not None:
                self.prefill[candidate] = sample.prefill_tps
            self.decode[candidate, rows] = sample.decode_tps
            self.depth[candidate] = min(self.depth.get(candidate, sample.depth), sample.depth)

    def score(self, contender: Contender, task: PlanTask) -> float:
        """Higher is better; see ``choose.score``."""
        candidate, rows = contender
        return score(Figures(self.prefill[candidate], {rows: self.decode[contender]}), task)


def without_drift(rounds: Sequence[Round]) -> list[Round]:
    """The rounds as if the machine had been equally fast in all of them."""
    whole = [who for who in rounds[0].decode if all(who in one.decode for one in rounds)]
    usual = {who: statistics.median(one.decode[who] for one in rounds) for who in whole}
    steady = []
    for one in rounds:
        drift = statistics.median(one.decode[who] / usual[who] for who in whole) if whole else 1.0
        prefill = {candidate: tps / drift for candidate, tps in one.prefill.items()}
        steady.append(Round(prefill, {who: tps / drift for who, tps in one.decode.items()}))
    return steady


def figures_of(candidate: Candidate, rounds: Sequence[Round]) -> Figures:
    """The candidate's median round, drift divided out; the scatter is that of the raw samples."""
    rows = sorted({n for one in rounds for own, n in one.decode if own == candidate})
    steady = without_drift(rounds)
    decode = {n: _taken((candidate, n), steady) for n in rows}
    raw = [[one.prefill[candidate] for one in rounds if candidate in one.prefill]]
    raw += [_taken((candidate, n), rounds) for n in rows]
    return Figures(
        statistics.median(one.prefill[candidate] for one in steady if candidate in one.prefill),
        {n: statistics.median(values) for n, values in decode.items()},
        max(map(spread, raw)),
        min((one.depth[candidate] for one in rounds if candidate in one.depth), default=0),
    )


def remaining(
    rounds: Sequence[Round], among: Iterable[Contender], task: PlanTask
) -> list[Contender]:
    """Those of ``among`` that may still be the best, the best so far first."""
    steady = without_drift(rounds)
    scores = {who: statistics.median(_scores(who, steady, task)) for who in among}
    ranked = sorted(scores, key=lambda who: -scores[who])
    return [who for who in ranked if scores[who] >= _BEHIND * scores[ranked[0]]]


def is_settled(rounds: Sequence[Round], ranked: Sequence[Contender], task: PlanTask) -> bool:
    """Whether more rounds would hardly change which of ``ranked`` is the best, or by how much."""
    leader = _scores(ranked[0], rounds, task)
    for contender in ranked[1:]:
        pairs = zip(leader, _scores(contender, rounds, task), strict=True)
        ahead = [math.log(first / other) for first, other in pairs]
        error = statistics.stdev(ahead) / math.sqrt(len(ahead))
        if error > _FINE and statistics.mean(ahead) < _SURE * error:
            return False
    return True


def _scores(contender: Contender, rounds: Sequence[Round], task: PlanTask) -> list[float]:
    return [one.score(contender, task) for one in rounds if contender in one.decode]


def _taken(contender: Contender, rounds: Sequence[Round]) -> list[float]:
    return [one.decode[contender] for one in rounds if contender in one.decode]
