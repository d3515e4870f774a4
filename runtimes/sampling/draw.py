"""Temperature, top-k, top-p, min-p and the draw, for many short rows or for one long row.

Both give each row the same kept tokens and go through them by ascending id.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtimes.sampling.nucleus import in_nucleus
from runtimes.sampling.scratch import BLOCK, SCRATCH
from runtimes.sampling.state import SamplerState

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FEW = 16  # a kept set smaller than the vocabulary by this factor is gathered


def draw_among(values: Floats, tops: Floats, states: Sequence[SamplerState]) -> Ints:
    """Position of each row's token in ``values``: float32 [rows, width], in the order of the ids.

    ``values`` are logits, all that top-k may keep among them, and -inf in unused places; ``tops``
    are their finite maxima [rows].
    """
    params = [state.params for state in states]
    width = values.shape[1]
    top = tops[:, None]
    scale = np.array([state.inverse_temperature for state in states], np.float32)[:, None]
    weights = _weights(values, top, scale)
    if any(0 < p.top_k < width or p.top_p < 1 for p in params):
        weights *= _kept(values, top, scale, states)
    if any(p.min_p > 0 for p in params):
        # The likeliest token's weight is exactly 1.
        weights *= weights >= np.array([p.min_p for p in params], np.float32)[:, None]
    reached = weights.cumsum(axis=1, dtype=np.float64)
    # Below the total for every number below 1, even rounded.
    point = reached[:, -1] * [state.uniform() for state in states]
    places: Ints = (reached > point[:, None]).argmax(axis=1)
    return places


def _weights(values: Floats, top: Floats, scale: Floats) -> Floats:
    """Probabilities over the likeliest token's."""
    weights: Floats = values - top
    weights *= scale
    np.exp(weights, out=weights)
    return weights


def _kept(values: Floats, top: Floats, scale: Floats, states: Sequence[SamplerState]) -> Mask:
    """Which places top-k and then top-p keep."""
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
        outside = before >= (share * reached[:, -1])[:, None]
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
