"""One row of a whole vocabulary, which is not sorted: its likeliest tokens, its nucleus, a draw."""

from __future__ import annotations

import math
import threading

import numpy as np
import numpy.typing as npt

from runtimes.runner import Floats, Ints
from runtimes.sampling.state import SamplerState, States

# Temperature, top-k, top-p, min-p and the draw, for many short rows at once.
#
# ``whole_row.draw_whole`` gives a row the same kept tokens, and goes through them in the same
# order.


Doubles = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

BLOCK = 1024  # weights are summed in blocks of this many
_PARTS = 64
_LEAST = np.finfo(np.float32).min
_SAMPLE = 8192
_TINY = 1e-30
_ROUNDED = 0.999  # a bound by floats, made safe
_MANY = 4096  # of more values, few are gathered first
_FEW = 16  # a kept set smaller than the vocabulary by this factor is gathered
_FEW_SORTED = 8  # a part smaller than the vocabulary by this factor is sorted at once


class Scratch(threading.local):
    """Each thread's own buffers, of the largest vocabulary that it has met: fresh pages would cost
    a step more than the work.

    ``copy``, ``weights`` and ``spare`` are float32, ``mask`` is bool. ``weights`` is a multiple of
    ``BLOCK`` long.
    """

    copy: Floats
    weights: Floats
    spare: Floats
    mask: Mask

    def __init__(self) -> None:
        self.weights = np.empty(0, np.float32)

    def fit(self, vocabulary: int) -> Scratch:
        """Itself, with buffers at least that long."""
        if len(self.weights) < vocabulary:
            size = -(-vocabulary // BLOCK) * BLOCK
            self.copy, self.weights, self.spare = (np.empty(size, np.float32) for _ in range(3))
            self.mask = np.empty(size, np.bool_)
        return self


SCRATCH = Scratch()


def at_least_best(logits: Floats, count: int) -> Ints:
    """Ascending ids that hold the ``count`` largest of a row's finite logits, and few others.

    ``logits`` is [vocabulary], 1 <= count <= vocabulary. Empty where the largest is not finite (NaN
    counts as largest).
    """
    bound, top = _lower_bound(logits, count)
    if not np.isfinite(top):
        return np.empty(0, np.int64)
    mask = SCRATCH.fit(len(logits)).mask[: len(logits)]
    return np.flatnonzero(np.greater_equal(logits, max(bound, _LEAST), out=mask))


def best(logits: Floats, count: int) -> Ints:
    """Ids of the ``count`` largest, in descending order, equal ones by ascending id."""
    ids = at_least_best(logits, count)
    if len(ids) < count:
        ids = np.arange(len(logits))  # -inf among them
    return ids[np.argsort(-logits[ids], kind="stable")[:count]]


def _lower_bound(logits: Floats, count: int) -> tuple[np.float32, np.float32]:
    """A number that at least ``count`` logits reach, and not many more; and the largest logit."""
    size = len(logits)
    stride = -(-size // _PARTS)
    if 4 * count > stride or size < _PARTS * _PARTS:
        return np.partition(logits, size - count)[size - count], logits.max()
    # The count-th largest of the maxima of disjoint groups. Groups are every stride-th token:
    # NumPy takes the maximum over the first axis 6 times as fast as over a short last one.
    body = stride * (_PARTS - 1)
    maxima = logits[:body].reshape(_PARTS - 1, stride).max(axis=0)
    rest = size - body
    np.maximum(maxima[:rest], logits[body:], out=maxima[:rest])
    return np.partition(maxima, stride - count)[stride - count], maxima.max()


def draw_whole(logits: Floats, top: np.float32, state: SamplerState) -> int:
    """The token of one row of float32 [vocabulary], top-k off; ``top`` is its finite maximum."""
    size = len(logits)
    params = state.params
    scratch = SCRATCH.fit(size)
    padded = scratch.weights[: -(-size // BLOCK) * BLOCK]
    padded[size:] = 0
    weights = np.subtract(logits, top, out=padded[:size])
    weights *= np.float32(state.inverse_temperature)
    np.exp(weights, out=weights)
    if params.top_p < 1:
        kept = in_nucleus(weights, logits, params.top_p, float(_block_sums(padded)[-1]))
        if params.min_p > 0:
            kept &= weights >= np.float32(params.min_p)
    elif params.min_p > 0:
        kept = np.greater_equal(weights, np.float32(params.min_p), out=scratch.mask[:size])
    else:
        return _at(padded, state.uniform())
    if np.count_nonzero(kept) * _FEW <= size:
        ids = np.flatnonzero(kept)
        reached = np.cumsum(weights[ids], dtype=np.float64)
        return int(ids[_beyond(reached, state.uniform() * reached[-1])])
    weights *= kept
    return _at(padded, state.uniform())


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
    """Sum and number of the weights above a part that very probably has the nucleus's edge; it."""
    size = len(weights)
    mask = SCRATCH.fit(size).mask[:size]
    # The weights below this together weigh less than the tail: the edge is not among them.
    low = np.float32(tail / size)
    if np.count_nonzero(np.greater_equal(weights, low, out=mask)) * _FEW_SORTED <= size:
        return 0.0, 0, weights[np.flatnonzero(mask)]
    # Every n-th token tells about where the running sum from the smallest on passes the tail.
    stride = -(-size // _SAMPLE)
    sample = np.sort(weights[::stride])
    place = int(np.searchsorted(np.cumsum(sample, dtype=np.float64), tail / stride))
    place = min(place, len(sample) - 1)
    middle = sample[place]
    # The exact sum from there on tells how many tokens away the edge is, and on which side.
    np.greater_equal(weights, middle, out=mask)
    # Faster than ``sum(where=mask)``.
    above = float(np.multiply(weights, mask, out=SCRATCH.spare[:size]).sum())
    count = int(np.count_nonzero(mask))
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


def _block_sums(weights: Floats) -> Doubles:
    """Running sums at the end of each block."""
    sums: Floats = weights.reshape(-1, BLOCK).sum(axis=1)
    return np.cumsum(sums, dtype=np.float64)


def _at(weights: Floats, uniform: float) -> int:
    """The first place at which the running sum exceeds ``uniform`` of the total."""
    reached = _block_sums(weights)
    point = uniform * reached[-1]
    block = _beyond(reached, point)
    begin = block * BLOCK
    within = np.cumsum(weights[begin : begin + BLOCK], dtype=np.float64)
    return begin + _beyond(within, point - (reached[block - 1] if block else 0.0))


def _beyond(reached: Doubles, point: float) -> int:
    """The first place whose running sum exceeds ``point``."""
    # A block's float32 sum may lie above that of its float64 running sum.
    point = min(point, math.nextafter(reached[-1], 0))
    return int(np.searchsorted(reached, point, side="right"))


def draw_among(values: Floats, tops: Floats, states: States) -> Ints:
    """Position of each row's token in ``values``: float32 [rows, width], in the order of the ids.

    ``values`` are logits, all that top-k may keep among them, and -inf in unused places; ``tops``
    are their finite maxima [rows].
    """
    params = [state.params for state in states]
    width = values.shape[1]
    top = tops[:, None]
    scale = np.array([state.inverse_temperature for state in states], np.float32)[:, None]
    weights = _weights(values, top, scale)
    ids, some = None, any(0 < p.top_k < width for p in params)
    if some or any(p.top_p < 1 for p in params):
        total = weights.sum(axis=1, dtype=np.float64)
        if not some and values.size > _MANY:
            # The weights below this together weigh less than what top-p leaves out.
            least = total * [_ROUNDED * (1 - p.top_p) / width for p in params]
            values, ids = _gathered(values, weights >= least[:, None])
            weights = _weights(values, top, scale)
        weights *= _kept(values, top, scale, states, total)
    if any(p.min_p > 0 for p in params):
        # The likeliest token's weight is exactly 1.
        weights *= weights >= np.array([p.min_p for p in params], np.float32)[:, None]
    reached = weights.cumsum(axis=1, dtype=np.float64)
    # Below the total for every number below 1, even rounded.
    point = reached[:, -1] * [state.uniform() for state in states]
    places: Ints = (reached > point[:, None]).argmax(axis=1)
    return places if ids is None else ids[np.arange(len(ids)), places]


def _gathered(values: Floats, mask: Mask) -> tuple[Floats, Ints]:
    """Each row's values where the mask is set, and their places, in as few columns as hold them."""
    counts, flat = mask.sum(axis=1), np.flatnonzero(mask)
    used = np.arange(counts.max()) < counts[:, None]
    few, places = np.full(used.shape, -np.inf, np.float32), np.zeros(used.shape, np.int64)
    few[used], places[used] = values.ravel()[flat], flat % mask.shape[1]
    return few, places


def _weights(values: Floats, top: Floats, scale: Floats) -> Floats:
    """Probabilities over the likeliest token's."""
    weights: Floats = values - top
    weights *= scale
    np.exp(weights, out=weights)
    return weights


def _kept(values: Floats, top: Floats, scale: Floats, states: States, total: Doubles) -> Mask:
    """Return the positions that top-k and then top-p keep. ``total`` is each row's weight."""
    width = values.shape[1]
    count = np.array([min(s.params.top_k or width, width) for s in states])
    ordered = _descending(values, int(count.max()))
    if any(s.params.top_p < 1 for s in states):
        share = np.array([s.params.top_p if s.params.top_p < 1 else np.inf for s in states])
        weights = _weights(ordered, top, scale)
        if count.min() < ordered.shape[1]:
            weights *= np.arange(ordered.shape[1]) < count[:, None]
        reached = weights.cumsum(axis=1, dtype=np.float64)
        # Up to and with the token at which the share is reached.
        before = reached - weights
        total = np.where(count < width, reached[:, -1], total)
        outside = before >= (share * total)[:, None]
        first = outside.argmax(axis=1)
        count = np.minimum(count, np.where(first, first, width))
    edge = ordered[np.arange(len(values)), count - 1]
    kept: Mask = values >= edge[:, None]
    if np.count_nonzero(kept) > count.sum():
        for row in range(len(values)):
            excess = int(np.count_nonzero(kept[row])) - int(count[row])
            if excess > 0:
                equal = np.flatnonzero(values[row] == edge[row])
                kept[row, equal[len(equal) - excess :]] = False
    return kept


def _descending(values: Floats, count: int) -> Floats:
    """Each row's ``count`` largest, in descending order."""
    width = values.shape[1]
    ordered = values.copy()
    if 4 * count < width:
        ordered.partition(width - count, axis=1)
        ordered = ordered[:, width - count :]
    ordered.sort(axis=1)
    return ordered[:, ::-1][:, :count]
