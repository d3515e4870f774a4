"""The best few in turn, lap by lap, until it is clear which is the fastest.

The samples of a lap follow each other, so that what else the machine does falls on all of them
alike: settings are compared within a lap, and a lap's common drift is divided out of its figures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runtimes.planner.candidates import Candidate, Task
from runtimes.planner.choose import score, spread
from runtimes.planner.plan import Figures

LEAST_LAPS, MOST_LAPS = 4, 20
_BEHIND = 0.85  # of the leader's score: what is slower than this is not measured again
_SURE, _FINE = 2.0, 0.01  # standard errors that part two settings; an error that is small enough

Arm = tuple[Candidate, int]
"""A setting that competes: a candidate with a number of rows together."""


@dataclass(frozen=True, slots=True)
class Lap:
    """Tokens a second in one lap: of one prompt's prefill, and of all rows decoding together."""

    prefill: dict[Candidate, float] = field(default_factory=dict)
    decode: dict[Arm, float] = field(default_factory=dict)

    def score(self, arm: Arm, task: Task) -> float:
        """Higher is better; see ``choose.score``."""
        candidate, rows = arm
        return score(Figures(self.prefill[candidate], {rows: self.decode[arm]}), task)


def without_drift(laps: Sequence[Lap]) -> list[Lap]:
    """The laps as if the machine had been equally fast in all of them."""
    whole = [arm for arm in laps[0].decode if all(arm in lap.decode for lap in laps)]
    usual = {arm: statistics.median(lap.decode[arm] for lap in laps) for arm in whole}
    steady = []
    for lap in laps:
        drift = statistics.median(lap.decode[arm] / usual[arm] for arm in whole) if whole else 1.0
        steady.append(
            Lap(
                {candidate: tps / drift for candidate, tps in lap.prefill.items()},
                {arm: tps / drift for arm, tps in lap.decode.items()},
            )
        )
    return steady


def figures_of(candidate: Candidate, laps: Sequence[Lap]) -> Figures:
    """The candidate's median lap, drift divided out; the scatter is that of the raw samples."""
    rows = sorted({n for lap in laps for who, n in lap.decode if who == candidate})
    steady = without_drift(laps)
    decode = {n: _taken((candidate, n), steady) for n in rows}
    raw = [[lap.prefill[candidate] for lap in laps if candidate in lap.prefill]]
    raw += [_taken((candidate, n), laps) for n in rows]
    return Figures(
        statistics.median(lap.prefill[candidate] for lap in steady if candidate in lap.prefill),
        {n: statistics.median(values) for n, values in decode.items()},
        max(map(spread, raw)),
    )


def contenders(laps: Sequence[Lap], arms: Iterable[Arm], task: Task) -> list[Arm]:
    """Those of ``arms`` that may still be the best, the best so far first."""
    steady = without_drift(laps)
    scores = {arm: statistics.median(_scores(arm, steady, task)) for arm in arms}
    ranked = sorted(scores, key=lambda arm: -scores[arm])
    return [arm for arm in ranked if scores[arm] >= _BEHIND * scores[ranked[0]]]


def is_settled(laps: Sequence[Lap], ranked: Sequence[Arm], task: Task) -> bool:
    """Whether more laps would hardly change which of ``ranked`` is the best, or by how much."""
    leader = _scores(ranked[0], laps, task)
    for arm in ranked[1:]:
        pairs = zip(leader, _scores(arm, laps, task), strict=True)
        ahead = [math.log(first / other) for first, other in pairs]
        error = statistics.stdev(ahead) / math.sqrt(len(ahead))
        if error > _FINE and statistics.mean(ahead) < _SURE * error:
            return False
    return True


def _scores(arm: Arm, laps: Sequence[Lap], task: Task) -> list[float]:
    return [lap.score(arm, task) for lap in laps if arm in lap.decode]


def _taken(arm: Arm, laps: Sequence[Lap]) -> list[float]:
    return [lap.decode[arm] for lap in laps if arm in lap.decode]
