"""Temperature, top-k, top-p, min-p and the draw, for many short rows at once.

``whole_row.draw_whole`` gives a row the same kept tokens, and goes through them in the same order.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtimes.sampling.state import SamplerState

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


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
