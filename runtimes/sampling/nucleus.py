"""Top-p over a whole vocabulary that no top-k has cut, without sorting it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from runtimes.sampling.scratch import SCRATCH

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

_SAMPLE = 8192
_FEW = 8  # a part smaller than the vocabulary by this factor is sorted at once


def in_nucleus(weights: Floats, logits: Floats, share: float, total: float) -> Mask:
    """The fewest tokens of largest logit whose weights sum up to ``share`` of ``total``.

    ``weights`` are float32 [vocabulary], ``share`` is below 1. Equal logits rank by ascending id.
    The mask is valid until the thread's next call.
    """
    edge, count = _edge(weights, share, total)
    mask = np.greater_equal(weights, edge, out=SCRATCH.fit(len(weights)).mask[: len(weights)])
    excess = int(np.count_nonzero(mask)) - count
    if excess > 0:
        # Equal weights may come from unequal logits.
        equal = np.flatnonzero(weights == edge)
        equal = equal[np.argsort(-logits[equal], kind="stable")]
        mask[equal[len(equal) - excess :]] = False
    return mask


def _edge(weights: Floats, share: float, total: float) -> tuple[np.float32, int]:
    """The nucleus's smallest weight, and how many tokens the nucleus has."""
    mass = share * total
    low, high = _bracket(weights, total - mass)
    above, count, part = _between(weights, low, high)
    ordered = np.sort(part)[::-1]
    reached = above + np.cumsum(ordered, dtype=np.float64)
    if not len(reached) or not above < mass <= reached[-1]:
        # The sample has misled, or rounding: the whole row decides.
        above, count, ordered = 0.0, 0, np.sort(weights)[::-1]
        reached = np.cumsum(ordered, dtype=np.float64)
    place = min(int(np.searchsorted(reached, mass, side="left")), len(ordered) - 1)
    return ordered[place], count + place + 1


def _bracket(weights: Floats, tail: float) -> tuple[np.float32, np.float32]:
    """Two weights with the nucleus's edge very probably between them.

    ``tail`` is the mass outside the nucleus. All weights below tail / vocabulary together weigh
    less, so the edge is not among them. If too many are above, every n-th token tells where the
    running sum from the smallest weight on passes the tail. Its standard deviation there is at most
    the square root of the sample's tokens below.
    """
    size = len(weights)
    low = np.float32(tail / size)
    if np.count_nonzero(weights >= low) * _FEW <= size:
        return low, np.float32(np.inf)
    stride = -(-size // _SAMPLE)
    sample = np.sort(weights[::stride])
    place = int(np.searchsorted(np.cumsum(sample, dtype=np.float64), tail / stride))
    slack = 4 + 3 * math.isqrt(place)
    least = sample[place - slack] if place > slack else low
    most = sample[place + slack] if place + slack < len(sample) else np.float32(np.inf)
    return least, most


def _between(weights: Floats, low: np.float32, high: np.float32) -> tuple[float, int, Floats]:
    """The sum and number of the weights from ``high`` on, and those from ``low`` to below it."""
    if np.isinf(high):
        return 0.0, 0, weights[np.flatnonzero(weights >= low)]
    scratch = SCRATCH.fit(len(weights))
    top = np.greater_equal(weights, high, out=scratch.mask[: len(weights)])
    count = int(np.count_nonzero(top))
    above = float(np.multiply(weights, top, out=scratch.spare[: len(weights)]).sum())
    np.not_equal(top, weights >= low, out=top)
    return above, count, weights[np.flatnonzero(top)]
