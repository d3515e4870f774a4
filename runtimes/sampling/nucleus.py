"""Top-p over a whole vocabulary that no top-k has cut, without sorting it."""

import math

import numpy as np
import numpy.typing as npt

from runtimes.sampling.scratch import SCRATCH

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

_SAMPLE = 8192
_TINY = 1e-30
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
    above, count, part = _around_edge(weights, mass, total - mass)
    ordered = np.sort(part)[::-1]
    reached = above + np.cumsum(ordered, dtype=np.float64)
    if not len(reached) or not above < mass <= reached[-1]:
        # The sample has misled, or rounding: the whole row decides.
        count, ordered = 0, np.sort(weights)[::-1]
        reached = np.cumsum(ordered, dtype=np.float64)
    place = min(int(np.searchsorted(reached, mass, side="left")), len(ordered) - 1)
    return ordered[place], count + place + 1


def _around_edge(weights: Floats, mass: float, tail: float) -> tuple[float, int, Floats]:
    """Weights with the nucleus's edge very probably among them; sum and number of all larger ones.

    ``mass`` is that of the nucleus, ``tail`` what lies outside.
    """
    size = len(weights)
    mask = SCRATCH.fit(size).mask[:size]
    # The weights below this together weigh less than the tail: the edge is not among them.
    low = np.float32(tail / size)
    if np.count_nonzero(np.greater_equal(weights, low, out=mask)) * _FEW <= size:
        return 0.0, 0, weights[np.flatnonzero(mask)]
    # Every n-th token tells about where the running sum from the smallest on passes the tail.
    stride = -(-size // _SAMPLE)
    sample = np.sort(weights[::stride])
    place = int(np.searchsorted(np.cumsum(sample, dtype=np.float64), tail / stride))
    place = min(place, len(sample) - 1)
    middle = sample[place]
    # The exact sum from there on tells how many tokens away the edge is, and on which side.
    np.greater_equal(weights, middle, out=mask)
    above, count = _sum(weights, mask), int(np.count_nonzero(mask))
    steps = math.ceil(abs(mass - above) / max(float(middle), _TINY) / stride)
    steps = min(steps + steps // 4 + 3 * math.isqrt(steps) + 4, len(sample))
    if above < mass:
        least = sample[place - steps] if place >= steps else np.float32(0)
        np.not_equal(mask, weights >= least, out=mask)
        return above, count, weights[np.flatnonzero(mask)]
    most = sample[place + steps] if place + steps < len(sample) else np.float32(np.inf)
    np.logical_and(mask, weights < most, out=mask)
    part = weights[np.flatnonzero(mask)]
    return above - float(part.sum(dtype=np.float64)), count - len(part), part


def _sum(weights: Floats, mask: Mask) -> float:
    """The sum of the masked weights; faster than ``sum(where=mask)``."""
    return float(np.multiply(weights, mask, out=SCRATCH.spare[: len(weights)]).sum())
